// The search of the site: how pages are ranked, and how they are shown. tools/docs.py writes PAGES above: what it knows of each page.
// A page's title and what it is also called count most, then names of the reference, headings, and last the text. A page of questions
// is as good as its best part: words in several parts count little, and the result leads to the part.
const WEIGHTS = { also: 9, title: 8, name: 5, heading: 3, about: 3, text: 1 };
const ELSEWHERE = 0.3; // a word is in the text of another part
const LOOSE = 0.5; // a word of the query is one of many words of a name the page is also called
const PHRASE = 12; // the whole query is a name the page is also called, or its title
const PART = 3; // all words of the query are below one heading
const PART_NAME = 6; // a name that the part is also called
const EXACT_NAME = 40; // the query is the name of a function or class
const ASIDE = 0.4; // a word that is in texts only, and never in a title, a heading or another name of a page
const FEW = 3; // a name on fewer pages, or in texts only, is also searched by its words
const PARTIAL = 0.6; // a word of the query begins one of the page's
const FILLER = new Set('a all am an and are as at be but by can cannot could did didn do does doesn don false for from get had has have how i if in into is isn it like look looks its m me my need none of on one or s set should so some t that the their then there these this to true use used using very want was we were what when where which why will with without would you your'.split(' '));
// Words that mean the same in a question count as one.
const SAME = [
  'own custom', 'image picture photo', 'network net', 'gpu cuda', 'several multiple multi', 'plot chart curve figure draw visualize',
  'show display print see view', 'stop cancel abort quit interrupt', 'resume continue', 'undo revert rewind', 'slow slower fast faster quick speed speedup',
  'crash killed died hang', 'wrong mistake misclassified incorrect', 'computer machine laptop pc', 'folder directory', 'remove delete', 'choose pick select',
  'change modify adjust', 'compute calculate', 'same identical equal', 'loss criterion', 'predict inference', 'notebook jupyter', 'imbalanced unbalanced skewed',
  'memory ram vram', 'deploy serving production', 'reproducible deterministic', 'csv spreadsheet', 'hyper hyperparameter', 'overfit overfitting', 'sentence text', 'classification classifier classify', 'evaluation evaluate', 'loader dataloader', 'valid val',
].map(group => group.split(' '));
const GLOSSARY = 'guides/terms';
const DEFINITION = /^\W*what\W*(is|are|s|does|do)\b|difference between|meaning of/i; // a question for the meaning of a word
const LIMIT = 30;

const site = { stemmer: null, stems: new Map(), same: new Map(), topics: null, pages: null };

function words(text) {
  return (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).filter(word => word.length);
}

function useful(text) {
  const all = [...new Set(words(text))];
  const found = all.filter(word => !FILLER.has(word) && !/^\p{N}+$/u.test(word));
  return found.length ? found : all;
}

function stem(word) {
  if (!site.stems.size) for (const group of SAME) for (const other of group) site.same.set(site.stemmer.stemWord(other), site.stemmer.stemWord(group[0]));
  if (!site.stems.has(word)) {
    const own = site.stemmer.stemWord(word);
    site.stems.set(word, site.same.get(own) ?? own);
  }
  return site.stems.get(word);
}

// A name such as fit_one_cycle is one word, and three.
function stems(text) {
  return words(text).flatMap(word => (word.includes('_') ? [word, ...word.split('_').filter(Boolean)] : [word])).map(stem);
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
      phrases: [known.title ?? index.titles[i], ...also].map(text => useful(text).map(stem)),
      words: { title: new Set(stems(index.titles[i])), also: new Set(also.flatMap(stems)), about: new Set(stems(known.about ?? '')), heading: new Set(), name: new Set() },
      headings: [],
      parts: Object.entries(known.parts ?? {}).map(([title, [text, ...names]]) => ({
        title, heading: new Set(stems(title)), words: new Set([...stems(title), ...stems(text)]), phrases: [title, ...names].map(name => useful(name).map(stem)),
      })),
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
  site.topics = new Set(site.pages.flatMap(page => [page.words, ...page.parts].flatMap(of => [of.title, of.also, of.heading].flatMap(set => (set instanceof Set ? [...set] : []))).concat(...page.parts.map(part => part.phrases.flat()))));
  site.names = [];
  for (const [prefix, entries] of Object.entries(index.objects)) {
    for (const [i, kind, , anchor, name] of entries) {
      const full = `${prefix ? `${prefix}.` : ''}${name}`;
      const page = site.pages[i];
      if (!page) continue;
      stems(name).forEach(word => page.words.name.add(word) && site.topics.add(word));
      site.names.push({ page, full, name, last: name.split('.').at(-1).toLowerCase(), anchor: anchor === '' ? full : anchor === '-' ? `${index.objnames[kind][1]}-${full}` : anchor, kind: index.objnames[kind][2].replace('Python ', '') });
    }
  }
}

// The pages that have a word in their text.
function found(word) {
  const index = Search._index;
  const same = [...site.same].filter(([, first]) => first === word).map(([other]) => other);
  return new Set([word, ...same].flatMap(other => [...asList(own(index.terms, other)), ...asList(own(index.titleterms, other))]));
}

// Names that few pages have, such as LearningRateMonitor or max_grad_value, are asked for by their words, too.
function split(query) {
  return query.replace(/[\p{L}\p{N}_]+/gu, name => {
    const word = stem(name.toLowerCase());
    const pages = site.pages.filter((page, i) => found(word).has(i) || page.parts.some(part => part.words.has(word)) || Object.values(page.words).some(set => set.has(word))).length;
    if (pages >= FEW && site.topics.has(word)) return name;
    const words = name.replace(/(\p{Ll}|\p{N})(?=\p{Lu})|(\p{Lu})(?=\p{Lu}\p{Ll})|_/gu, '$1$2 ');
    return pages ? `${name} ${words}` : words;
  });
}

// How much each word of a query counts for the names that a page is also called: less if most of the name is not asked for.
function called(page, terms) {
  const asked = new Set(terms);
  const best = new Map();
  for (const phrase of page.phrases) {
    const share = phrase.filter(word => asked.has(word)).length / phrase.length;
    for (const word of phrase) best.set(word, Math.max(best.get(word) ?? 0, LOOSE + (1 - LOOSE) * share));
  }
  return best;
}

// What a page has of a word besides its text.
function hit(page, word, names) {
  let best = 0;
  for (const [where, set] of Object.entries(page.words)) {
    const weight = WEIGHTS[where] * (where === 'also' ? names.get(word) ?? 1 : where === 'heading' && page.parts.length ? 0 : 1);
    if (weight <= best) continue;
    if (set.has(word)) best = weight;
    else if (word.length > 3 && PARTIAL * weight > best && [...set].some(other => other.startsWith(word))) best = PARTIAL * weight;
  }
  return best;
}

function rankPages(query) {
  prepare();
  const index = Search._index;
  const terms = [...new Set(useful(split(query)).map(stem))];
  const inText = terms.map(found);
  const rows = site.pages.map((page, i) => {
    const names = called(page, terms);
    return terms.map((word, k) => {
      const text = page.parts.length ? ELSEWHERE : WEIGHTS.text;
      return Math.max(hit(page, word, names), inText[k].has(i) || page.parts.some(part => part.words.has(word)) ? text : 0);
    });
  });
  const pagesWith = terms.map((_, k) => rows.filter(row => row[k] > 0).length);
  const rare = pagesWith.map((n, k) => (n ? Math.log(1 + site.pages.length / (1 + n)) : 0) * (site.topics.has(terms[k]) ? 1 : ASIDE)); // a word that no page has says nothing
  const weigh = value => terms.reduce((sum, word, k) => sum + value(word, k) * rare[k], 0);
  const all = weigh(() => 1);
  const known = pagesWith.filter(n => n).length;
  const rareness = new Map(terms.map((word, k) => [word, rare[k]]));
  const typical = all / Math.max(1, known); // of a word that is not asked for
  const nameOf = part => Math.max(0, ...(part?.phrases ?? []).map(phrase => {
    const asked = phrase.reduce((sum, word) => sum + (rareness.get(word) ?? 0), 0);
    return asked * (asked / (asked + typical * phrase.filter(word => !rareness.has(word)).length || 1)) ** 4;
  }));
  const isDefinition = DEFINITION.test(query);
  const results = [];
  site.pages.forEach((page, i) => {
    if (!rows[i].some(value => value > 0)) return;
    const whole = Math.max(0, ...page.phrases.filter(phrase => phrase.every(word => terms.includes(word))).map(phrase => weigh(word => phrase.includes(word)))) / all;
    const named = weigh(word => page.words.title.has(word) || page.words.also.has(word)) / all;
    let best = { score: 0 };
    for (const part of page.parts.length ? page.parts : [null]) {
      const row = part ? rows[i].map((value, k) => Math.max(value, part.heading.has(terms[k]) ? WEIGHTS.heading : part.words.has(terms[k]) ? WEIGHTS.text : 0)) : rows[i];
      const below = part ? weigh(word => part.words.has(word)) : 0;
      const share = (weigh((_, k) => Math.min(1, row[k])) / all + row.reduce((sum, value) => sum + Math.min(1, value), 0) / known) / 2;
      const score = (weigh((_, k) => row[k]) + PHRASE * whole + (PART * below * below) / all + PART_NAME * nameOf(part) + (nameOf(part) === all ? PHRASE : 0)) * share ** 1.5 * (isDefinition && page.name === GLOSSARY ? 5 : page.rank);
      if (score > best.score) best = { score, part, share: below / all };
    }
    const title = best.part?.title && (best.share > Math.max(named, 0.5) || nameOf(best.part) > all / 2) ? best.part.title : null;
    const heading = page.headings.find(heading => (page.parts.length ? heading.title === title : named < 1 && terms.every(word => heading.words.has(word))));
    results.push({ page, score: best.score, title: page.title, about: page.about, anchor: heading?.anchor ?? '', part: heading?.title ?? '' });
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
