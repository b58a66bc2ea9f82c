(seed) => {
  // It outlives the document.
  window.name = '';
  // Animations would make a screenshot depend on when it is taken.
  const style = document.createElement('style');
  style.textContent = `*, *::before, *::after {
    transition: none !important; animation: none !important; caret-color: transparent !important; }`;
  document.head.appendChild(style);
  if (window.jQuery) window.jQuery.fx.off = true;
  // The page's own clock must not end an episode: that is the environment worker's business.
  core.EPISODE_MAX_TIME = 1e9;
  core.countdownTimer = () => {};
  Math.seedrandom(seed);
  core.startEpisodeReal();
  if (document.activeElement) document.activeElement.blur();
  const utterance = core.getUtterance();
  return typeof utterance === 'string' ? utterance : utterance.utterance;
}
