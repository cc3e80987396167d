// Light or dark before the first paint; knows nothing of the run.
{
  const KEY = "fkd-theme";
  const { dataset } = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  try {
    dataset.theme = localStorage.getItem(KEY) ?? "";
  } catch {
    // storage can be forbidden
  }

  addEventListener("click", ({ target }) => {
    if (target.id !== "theme") return;
    const dark = dataset.theme ? dataset.theme === "dark" : system.matches;
    dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem(KEY, dataset.theme);
    } catch {
      // then it lasts as long as the page
    }
  });
}
