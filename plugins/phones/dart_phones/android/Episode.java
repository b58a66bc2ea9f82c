package dart.phone;

import org.junit.Test;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.annotation.LooperMode;

/** One episode, in the form that Robolectric runs. Its signatures name no class of Android. */
@Config(sdk = Episode.API_LEVEL)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@LooperMode(LooperMode.Mode.PAUSED)
public class Episode {
  static final int API_LEVEL = 34;

  @Test
  public void play() throws Exception {
    new Commands(System.in).serve();
  }
}
