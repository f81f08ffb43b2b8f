// Light or dark, before the page is painted: what was chosen here, else what the system prefers.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("nsde-theme"); } catch { /* private windows may refuse */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen ?? (dark ? "dark" : "light");
})();
