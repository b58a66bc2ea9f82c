package dart.phone;

import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.junit.runner.notification.RunNotifier;
import org.robolectric.RobolectricTestRunner;

/** Plays episodes, also of a class of a test's, in turn until standard input ends; Robolectric resets all of Android between two of them. */
public final class PhoneServer {
  private PhoneServer() {}

  public static void main(String[] arguments) throws Exception {
    System.setOut(System.err); // Standard output has replies only.
    Class<?> episode = arguments.length == 0 ? Episode.class : Class.forName(arguments[0]);
    RobolectricTestRunner runner = new RobolectricTestRunner(episode);
    RunNotifier notifier = new RunNotifier();
    notifier.addListener(new ExitOnFailure());
    while (true) {
      runner.run(notifier);
    }
  }

  /** Ends the process with the stack trace of an episode that failed: its state is unknown. */
  private static final class ExitOnFailure extends RunListener {
    @Override
    public void testFailure(Failure failure) {
      failure.getException().printStackTrace();
      System.exit(1);
    }
  }
}
