"""Live widgets -> plain HTML, from the widget state that a run leaves in the notebook.

A page, a README or a stored notebook has no kernel, so a widget there can only be a picture of itself.
"""

import html
import math
from collections.abc import Callable

from nbformat import NotebookNode

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
READABLE = ("text/html", "image/png", "image/svg+xml", "text/markdown")

ROW = "display:flex;gap:.8em;align-items:center;flex-wrap:wrap"
LABEL = "display:inline-flex;gap:.5em;align-items:center;opacity:.85"
BUTTON = "padding:.2em .9em;border:1px solid #8886;border-radius:3px;opacity:.7"

Models = dict[str, dict]


def freeze(nb: NotebookNode) -> NotebookNode:
    """Replace each widget view in `nb` (in place) by what it showed; outputs with a picture of their own keep that one."""
    models = nb.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            view = data.pop(VIEW, None)
            if view and not any(kind in data for kind in READABLE):
                page = render(models, view["model_id"])
                if page:
                    data["text/html"] = page
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data", True)]
    return nb


def render(models: Models, model_id: str) -> str:
    """The widget `model_id` and what it contains, as HTML without scripts or outside styles."""
    model = models.get(model_id.removeprefix("IPY_MODEL_"), {})
    name, state = model.get("model_name", "").removesuffix("Model"), model.get("state", {})
    if _is_hidden(models, state):
        return ""
    if "children" in state:
        return _box(models, name, state)
    draw = DRAW.get(name) or (_slider if "Slider" in name else _progress if "Progress" in name else _value)
    return draw(model, state)


def _is_hidden(models: Models, state: dict) -> bool:
    layout = models.get(str(state.get("layout", "")).removeprefix("IPY_MODEL_"), {}).get("state", {})
    return layout.get("display") == "none" or layout.get("visibility") == "hidden"


def _box(models: Models, name: str, state: dict) -> str:
    style = ROW if name == "HBox" else ""
    return f'<div style="{style}">{"".join(render(models, child) for child in state["children"])}</div>'


def _html(model: dict, state: dict) -> str:
    return f"<div>{state.get('value', '')}</div>"


def _label(model: dict, state: dict) -> str:
    return f"<span>{_text(state.get('value', ''))}</span>"


def _image(model: dict, state: dict) -> str:
    data = next((buffer["data"] for buffer in model.get("buffers", []) if buffer["path"] == ["value"]), "")
    return f'<img alt="" src="data:image/{_text(state.get("format", "png"))};base64,{data}">'


def _button(model: dict, state: dict) -> str:
    return f'<span style="{BUTTON}">{_text(state.get("description") or state.get("tooltip") or "")}</span>'


def _progress(model: dict, state: dict) -> str:
    low = state.get("min", 0)
    bar = f'<progress max="{state.get("max", 100) - low}" value="{state.get("value", 0) - low}"></progress>'
    return _labelled(state, bar)


def _slider(model: dict, state: dict) -> str:
    value = state.get("value")
    if not isinstance(value, int | float):
        return _value(model, state)
    low, high, place = state.get("min", 0), state.get("max", 100), value
    if "Log" in model["model_name"]:
        place = math.log(value, state.get("base", 10)) if value > 0 else low
    return _labelled(state, f'<input type="range" min="{low}" max="{high}" step="any" value="{place:g}" disabled> {value:.4g}')


def _choice(model: dict, state: dict) -> str:
    options, index = state.get("_options_labels", []), state.get("index")
    chosen = options[index] if isinstance(index, int) and index < len(options) else ""
    return _labelled(state, f'<span style="{BUTTON}">{_text(chosen)}</span>')


def _checkbox(model: dict, state: dict) -> str:
    return _labelled(state, "", before=f'<input type="checkbox" disabled{" checked" if state.get("value") else ""}>')


def _value(model: dict, state: dict) -> str:
    value = state.get("value", "")
    return _labelled(state, _text(value)) if value != "" or state.get("description") else ""


def _labelled(state: dict, content: str, before: str = "") -> str:
    return f'<span style="{LABEL}">{before}{_text(state.get("description") or "")} {content}</span>'


def _text(value: object) -> str:
    return html.escape(str(value))


DRAW: dict[str, Callable[[dict, dict], str]] = {
    "HTML": _html,
    "HTMLMath": _html,
    "Label": _label,
    "Image": _image,
    "Button": _button,
    "ToggleButton": _button,
    "Dropdown": _choice,
    "Select": _choice,
    "SelectionSlider": _choice,
    "RadioButtons": _choice,
    "ToggleButtons": _choice,
    "Checkbox": _checkbox,
}
