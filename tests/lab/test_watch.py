"""The page of a running fit: who may ask, who may steer, what is shown, and when the server ends."""

import contextlib
import gc
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from torch import nn

import cbnb.all as cbnb
from cbnb.lab.watch import Watch, page_state, state_of
from cbnb.toy import line_learner, wave_learner


def ask(watch, path=None, method="GET", **headers):
    """Return the status and the text of an answer. `path` is that in the address of the watch, if it is not given."""
    url = urlsplit(watch.url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    headers = {"Host": url.netloc} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, url.path + "data" if path is None else path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.headers)


def post(watch, what, **headers):
    url = urlsplit(watch.url)
    return ask(watch, url.path + what, "POST", **({"Origin": f"http://{url.netloc}"} | headers))[0]


@pytest.fixture
def watched(capsys):
    """A function that watches a learner, and closes its server at the end."""
    found = []

    def watch(learn, **settings):
        found.append(learn.watch(**settings))
        assert found[-1].url in capsys.readouterr().out  # printed once
        return found[-1]

    yield watch
    for each in found:
        each.close()


def in_thread(f):
    """Run a function in a thread, while the fit waits for it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(f()))
    thread.start()
    return thread, found


def test_without_the_token_there_is_nothing(watched):
    learn = wave_learner()  # the server ends with it
    watch = watched(learn, steer=True)
    token = watch.token
    for path in ("/", "/data", "/x/data", f"/{token[:-1]}/data", f"/{token}x/", f"/{token}/other", "/%00"):
        assert ask(watch, path)[:2] == (404, "")
    assert ask(watch)[0] == 200
    assert len(token) > 20 and watched(learn).token != token


def own_addresses():
    """Addresses of this machine other than 127.0.0.1. Nothing is sent to the documentation address of the first one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("198.51.100.1", 9))
        yield socket.AF_INET, probe.getsockname()[0]
    yield from [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")]


def test_the_server_is_bound_to_the_loopback_address_only(watched):
    learn = wave_learner()
    watch = watched(learn, steer=True)
    assert watch.server.socket.getsockname() == ("127.0.0.1", watch.port)
    socket.create_connection(("127.0.0.1", watch.port), timeout=20).close()
    for family, address in own_addresses():
        with pytest.raises(OSError), socket.socket(family) as client:  # refused, or no such address here
            client.settimeout(5)
            client.connect((address, watch.port))


def test_names_that_were_rebound_are_refused(watched):
    learn = wave_learner()  # the server ends with it
    watch = watched(learn, steer=True)
    port = urlsplit(watch.url).port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "", f"0.0.0.0:{port}"):
        assert ask(watch, Host=host)[0] == 403
        assert post(watch, "stop", Host=host, Origin=f"http://{host}") == 403
    assert ask(watch, Host=f"localhost:{port}")[0] == 200


def test_only_the_page_itself_steers_and_only_if_allowed(watched):
    learn = wave_learner()
    for steer in (False, True):
        watch, codes = watched(learn, steer=steer), []

        def steers(cb, watch=watch, codes=codes):
            if cb.iter == 3 and cb.training and cb.epoch == 0:
                for origin in ("http://evil.example", "null", watch.url.replace("http:", "https:")):
                    codes.append(post(watch, "stop", Origin=origin))
                codes.append(ask(watch, urlsplit(watch.url).path + "stop", "POST")[0])  # no origin at all
                codes.append(post(watch, "format"))
                codes.append(ask(watch, urlsplit(watch.url).path + "stop")[0])  # GET does nothing
                codes.append(post(watch, "stop"))

        learn.fit(2, cbs=cbnb.Callback(after_batch=steers))
        assert codes == [403, 403, 403, 403, 404 if steer else 403, 404, 200 if steer else 403]
        assert learn.recorder.last().status == ("cancelled" if steer else "done")
        assert post(watch, "stop") == (409 if steer else 403)  # no fit is running


def test_pause_and_resume_from_a_second_page(watched):
    learn = wave_learner()
    watch, seen = watched(learn, steer=True), []

    def resume():
        state = json.loads(ask(watch)[1])
        seen.append((state["paused"], state["running"], state["words"].partition(":")[0]))
        assert post(watch, "resume") == 200

    def pause(cb):
        if cb.training and cb.epoch == 1 and cb.iter == 0:
            assert post(watch, "pause") == 200
            in_thread(resume)

    learn.fit(2, cbs=cbnb.Callback(after_batch=pause))
    assert seen == [(True, True, "paused")] and learn.recorder.last().status == "done"
    assert [cb.name for cb in learn.cbs if cb.name == "steering"] == []  # only for the fit


def test_the_state_is_that_of_the_history_and_is_copied_by_the_loop(watched):
    learn = wave_learner()
    watch, threads = watched(learn), []

    def look(cb):
        if cb.training and cb.epoch == 1 and cb.iter == 4:
            threads.append(in_thread(lambda: json.loads(ask(watch)[1])))

    learn.fit(3, cbs=cbnb.Callback(after_batch=look))
    thread, found = threads[0]
    thread.join()
    assert found[0]["words"].split(":")[0] in ("running", "done") and len(found[0]["rows"]) >= 1
    state = json.loads(ask(watch)[1])
    assert state["words"] == "done: 3 of 3 epochs, 96 steps" and state["share"] == 1 and not state["running"]
    rows = [row.split("\t") for row in state["rows"]]
    assert [float(row[2]) for row in rows] == pytest.approx(learn.recorder.history["valid_loss"], abs=1e-6)
    assert json.loads(json.dumps(page_state("Sequential", state_of(learn), False, 0))) == state


def test_nothing_is_copied_while_no_page_asks(watched, monkeypatch):
    learn, copies = wave_learner(), []
    watch = watched(learn)
    copy = watch._copy
    monkeypatch.setattr(watch, "_copy", lambda learn: copies.append(1) or copy(learn))
    learn.fit(2)
    assert len(copies) == 5  # one for each phase, and one at the end; a batch copies nothing


def test_names_with_markup_are_text(watched):
    class Net(nn.Linear):
        pass

    Net.__name__ = "<script>alert(1)</script>"
    learn = cbnb.Learner(line_learner().dls, Net(1, 1), nn.MSELoss(), default_cbs=False, cbs=cbnb.Recorder)
    watch = watched(learn)
    status, page, headers = ask(watch, urlsplit(watch.url).path)
    assert status == 200 and "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "nonce-" in headers["Content-Security-Policy"] and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert json.loads(ask(watch)[1])["name"] == Net.__name__  # `watch.js` shows it by textContent
    assert re.search(r"\.b::?after", page) and not re.search(r"\.better\b", page)  # the class names of the table that `chart.js` makes


def test_the_server_ends_with_close_with_a_new_watch_and_with_the_learner(watched):
    before = cbnb.Learner.around_fits, cbnb.Learner.batch_filters
    learn = wave_learner()
    first = watched(learn)
    assert watched(learn) is first and watched(learn, port=first.port) is first  # open pages stay
    second = watched(learn, steer=True)
    with pytest.raises(ConnectionRefusedError):
        ask(first)
    assert ask(second)[0] == 200 and "closed" in repr(first) and second.url in second._repr_html_()
    del learn
    gc.collect()
    assert second.server is None
    with pytest.raises(ConnectionRefusedError):
        ask(second)
    assert (cbnb.Learner.around_fits, cbnb.Learner.batch_filters) == before


def test_a_script_prints_the_address_once_and_ends():
    program = (
        "from cbnb.toy import wave_learner\nimport cbnb.all\nlearn = wave_learner()\nlearn.watch(steer=True)\nlearn.fit(2)\nlearn.fit(1)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("http://127.0.0.1:") == 1 and not done.stderr


def test_a_learner_without_a_recorder_is_waited_for():
    watch = Watch(line_learner(default_cbs=False))
    assert page_state("x", watch.state, False, 0)["words"] == "waiting for a fit"
    watch.close()
