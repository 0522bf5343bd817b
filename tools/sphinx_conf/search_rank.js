// The search of the site: how pages are ranked, and how they are shown. tools/docs.py writes PAGES above: what it knows of each page.
// A page's title and what it is also called count most, then names of the reference, headings, and last the text.
const WEIGHTS = { also: 9, title: 8, name: 5, heading: 3, about: 3, text: 1 };
const PHRASE = 12; // the whole query is a name the page is also called, or its title
const EXACT_NAME = 40; // the query is the name of a function or class
const PARTIAL = 0.6; // a word of the query begins one of the page's
const FILLER = new Set('a all an and are as at by can cannot do does for from get how i if in into is it me my of on one or set so that the their then there to use used using was what when where which why will with without you your'.split(' '));
const LIMIT = 30;

const site = { stemmer: null, pages: null };

function words(text) {
  return (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).filter(word => word.length);
}

// A name such as fit_one_cycle is one word, and three.
function stems(text) {
  const parts = words(text).flatMap(word => (word.includes('_') ? [word, ...word.split('_').filter(Boolean)] : [word]));
  return parts.map(word => site.stemmer.stemWord(word));
}

function asList(found) {
  return found === undefined ? [] : Array.isArray(found) ? found : [found];
}

function own(table, key) {
  return Object.prototype.hasOwnProperty.call(table, key) ? table[key] : undefined;
}

function prepare() {
  if (site.pages) return;
  site.stemmer = new Stemmer();
  const index = Search._index;
  site.pages = index.docnames.map((name, i) => {
    const known = own(PAGES, name) ?? {};
    const also = known.also ?? [];
    return {
      name, title: known.title ?? index.titles[i], about: known.about ?? '', section: known.section ?? '', rank: known.rank ?? 0.5,
      phrases: [known.title ?? index.titles[i], ...also].map(text => stems(text).filter(word => !FILLER.has(word)).join(' ')),
      words: { title: new Set(stems(index.titles[i])), also: new Set(also.flatMap(stems)), about: new Set(stems(known.about ?? '')), heading: new Set(), name: new Set() },
      headings: [],
    };
  });
  for (const [title, places] of Object.entries(index.alltitles)) {
    for (const [i, anchor] of places) {
      if (anchor === null) continue;
      const found = stems(title);
      site.pages[i].headings.push({ title, anchor, words: new Set(found) });
      found.forEach(word => site.pages[i].words.heading.add(word));
    }
  }
  site.names = [];
  for (const [prefix, entries] of Object.entries(index.objects)) {
    for (const [i, kind, , anchor, name] of entries) {
      const full = `${prefix ? `${prefix}.` : ''}${name}`;
      const page = site.pages[i];
      if (!page) continue;
      stems(name).forEach(word => page.words.name.add(word));
      site.names.push({ page, full, name, last: name.split('.').at(-1).toLowerCase(), anchor: anchor === '' ? full : anchor === '-' ? `${index.objnames[kind][1]}-${full}` : anchor, kind: index.objnames[kind][2].replace('Python ', '') });
    }
  }
}

function hit(page, word, inText) {
  let best = inText ? WEIGHTS.text : 0;
  for (const [where, set] of Object.entries(page.words)) {
    if (WEIGHTS[where] <= best) continue;
    if (set.has(word)) best = WEIGHTS[where];
    else if (word.length > 3 && PARTIAL * WEIGHTS[where] > best && [...set].some(other => other.startsWith(word))) best = PARTIAL * WEIGHTS[where];
  }
  return best;
}

function rankPages(query) {
  prepare();
  const index = Search._index;
  const asked = [...new Set(words(query))];
  const useful = asked.filter(word => !FILLER.has(word));
  const terms = (useful.length ? useful : asked).map(word => site.stemmer.stemWord(word));
  const phrase = terms.join(' ');
  const inText = terms.map(word => new Set([...asList(own(index.terms, word)), ...asList(own(index.titleterms, word))]));
  const rows = site.pages.map((page, i) => terms.map((word, k) => hit(page, word, inText[k].has(i))));
  const rare = terms.map((_, k) => Math.log(1 + site.pages.length / (1 + rows.filter(row => row[k] > 0).length)));
  const results = [];
  site.pages.forEach((page, i) => {
    const score = rows[i].reduce((sum, value, k) => sum + value * rare[k], 0);
    if (!score) return;
    const share = rows[i].filter(value => value > 0).length / terms.length;
    const whole = page.phrases.includes(phrase) ? PHRASE : 0;
    const heading = page.headings.map(h => ({ ...h, n: terms.filter(word => h.words.has(word)).length })).sort((a, b) => b.n - a.n)[0];
    const below = heading && heading.n === terms.length && !terms.every(word => page.words.title.has(word)) ? heading : null;
    results.push({ page, score: (score + whole) * share ** 2 * page.rank, title: page.title, about: page.about, anchor: below?.anchor ?? '', part: below?.title ?? '' });
  });
  const plain = query.trim().toLowerCase().replace(/\(\)$/, '');
  const best = Math.max(0, ...results.map(result => result.score));
  for (const entry of site.names) {
    const name = entry.name.toLowerCase();
    if (plain.length < 2 || ![entry.last, name, entry.full.toLowerCase(), `learn.${entry.last}`].includes(plain)) continue;
    const known = entry.page.rank >= 1;
    results.push({ page: entry.page, score: EXACT_NAME * entry.page.rank + (known ? best : 0), title: entry.name, about: `${entry.kind}: ${own(ABOUT, entry.full) ?? entry.page.title}`, anchor: entry.anchor, part: '' });
  }
  return results.sort((a, b) => b.score - a.score || a.title.localeCompare(b.title)).slice(0, LIMIT);
}

function element(tag, content, kind) {
  const made = document.createElement(tag);
  made.textContent = content;
  if (kind) made.className = kind;
  return made;
}

// Shows the results; `Search` of Sphinx loads the index and calls this with the query.
Search.query = query => {
  const results = rankPages(query);
  const root = document.documentElement.dataset.content_root;
  Search.stopPulse();
  Search.title.textContent = results.length ? `Pages for “${query}”` : `Nothing found for “${query}”`;
  Search.status.textContent = results.length ? '' : 'Try fewer or other words, such as the name that another library has for it.';
  for (const result of results) {
    const item = document.createElement('li');
    const link = element('a', result.part ? `${result.title}${result.title.endsWith('?') ? '' : ':'} ${result.part}` : result.title);
    link.href = `${root}${result.page.name}.html${result.anchor ? `#${result.anchor}` : ''}`;
    item.append(link, element('span', result.page.section, 'section-name'), element('p', result.about, 'about'));
    Search.output.append(item);
  }
};
