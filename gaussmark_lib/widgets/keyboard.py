"""What ipywidgets has no attribute for: a page's shortcuts leave a key alone that is pressed inside
the panel (JupyterLab's X would cut the cell), also behind a click on what takes no focus, such as a
slider's track; a slider's handle has its label as a name; the title of a drawer is reached by Tab,
opened by Enter or Space, and as dark as other words; a dropdown's arrow is seen on a dark page.
"""

PANEL = "gaussmark-panel"  # the class of the panel's outermost element
# The image does not exist, so its error handler runs when the panel is shown.
KEYBOARD = """<style>
.gaussmark-panel .jupyter-widget-Collapse-header { color: var(--jp-ui-font-color1); }
[data-jp-theme-light='false'] .gaussmark-panel {
  --jp-widgets-dropdown-arrow: url("data:image/svg+xml,\
%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E\
%3Cpath fill='%23bdbdbd' d='M5 7l4 4 4-4z'/%3E%3C/svg%3E");
}
</style>
<img alt="" hidden src="data:," onerror="
const image = this;
const reach = tries => {
  const panel = image.closest('.gaussmark-panel');
  if (!panel) { if (tries) setTimeout(() => reach(tries - 1), 100); return; }
  const drawers = [...panel.querySelectorAll('.jupyter-widget-Collapse-header')];
  if (!drawers.length && tries) { setTimeout(() => reach(tries - 1), 100); return; }
  const place = document.createElement('span');  // of the focus, where the click was on words
  place.tabIndex = -1;
  panel.append(place);
  panel.addEventListener('click', event => {
    const slider = event.target.closest('.widget-slider');
    const take = () => {
      // The body, when a pressed button is disabled: Tab goes on from it to Stop.
      const focused = document.activeElement;
      if (focused === document.body || panel.contains(focused)) return;
      (slider && slider.querySelector('.noUi-handle') || place).focus({preventScroll: true});
    };
    // Behind JupyterLab, which gives the focus to the cell.
    for (const later of [0, 30, 100]) setTimeout(take, later);
  });
  for (const drawer of drawers) {
    const states = drawer.parentElement.classList;
    const tell = () => drawer.setAttribute(
      'aria-expanded', String(states.contains('jupyter-widget-Collapse-open')));
    drawer.tabIndex = 0;
    drawer.setAttribute('role', 'button');
    drawer.addEventListener('click', () => setTimeout(tell));
    drawer.addEventListener('keydown', event => {
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); drawer.click(); }
    });
    tell();
  }
  panel.addEventListener('focusin', event => {
    const focused = event.target, slider = focused.closest('.widget-slider');
    if (!focused.matches('textarea, input'))
      focused.setAttribute('data-lm-suppress-shortcuts', 'true');
    if (slider && focused.matches('.noUi-handle'))
      focused.setAttribute('aria-label', slider.querySelector('.widget-label').textContent);
  });
};
reach(100);">"""
