// A figure is enlarged by a click or by Enter, and put back by a click, Enter or Escape.
document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.tabIndex = 0;
  dialog.setAttribute("aria-label", "Enlarged figure. Escape closes it.");
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", event => {
    if (["Enter", "Escape"].includes(event.key)) dialog.close();
  });
  document.body.append(dialog);
  for (const figure of document.querySelectorAll("article img")) {
    if (figure.closest("a")) continue;
    const enlarge = () => {
      const copy = new Image();
      copy.src = figure.src;
      copy.alt = figure.alt;
      dialog.replaceChildren(copy);
      dialog.showModal();
    };
    figure.tabIndex = 0;
    figure.title = "Enlarge";
    figure.setAttribute("role", "button");
    figure.addEventListener("click", enlarge);
    figure.addEventListener("keydown", event => {
      if (!["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      enlarge();
    });
  }
});
