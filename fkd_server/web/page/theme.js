// Light or dark before the first paint; knows nothing of the run.
(() => {
  const KEY = "fkd-theme";
  const root = document.documentElement;
  const wanted = matchMedia("(prefers-color-scheme: dark)");

  function kept() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    } // storage can be forbidden
  }

  function keep(theme) {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      /* then it lasts as long as the page */
    }
  }

  if (kept() === "light" || kept() === "dark") root.dataset.theme = kept();
  const current = () => root.dataset.theme ?? (wanted.matches ? "dark" : "light");

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (button === null) return;
    const say = () => {
      button.textContent = current() === "dark" ? "Light theme" : "Dark theme";
    };
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      keep(root.dataset.theme);
      say();
    });
    wanted.addEventListener("change", say);
    say();
  });
})();
