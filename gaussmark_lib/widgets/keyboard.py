"""What ipywidgets has no attribute for: a page's shortcuts leave a key alone that is pressed inside the panel (JupyterLab's X would cut the cell),
a slider's handle has its label as a name, and the title of a closed drawer is as dark as other words.
"""

PANEL = "gaussmark-panel"  # the class of the panel's outermost element
# The image does not exist, so its error handler runs when the panel is shown.
KEYBOARD = """<style>.gaussmark-panel .jupyter-widget-Collapse-header { color: var(--jp-ui-font-color1); }</style>
<img alt="" hidden src="data:," onerror="
const image = this;
const reach = tries => {
  const panel = image.closest('.gaussmark-panel');
  if (!panel) { if (tries) setTimeout(() => reach(tries - 1), 100); return; }
  panel.addEventListener('focusin', event => {
    const focused = event.target, slider = focused.closest('.widget-slider');
    if (!focused.matches('textarea, input')) focused.setAttribute('data-lm-suppress-shortcuts', 'true');
    if (slider && focused.matches('.noUi-handle')) focused.setAttribute('aria-label', slider.querySelector('.widget-label').textContent);
  });
};
reach(100);">"""
