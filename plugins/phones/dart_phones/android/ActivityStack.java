package dart.phone;

import android.app.Activity;
import android.content.Intent;
import java.util.ArrayDeque;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;

/** The activities from the launcher upwards, in place of Android's activity manager. */
final class ActivityStack {
  private final ArrayDeque<ActivityController<? extends Activity>> activities = new ArrayDeque<>();

  void launch(Class<? extends Activity> kind) {
    launch(new Intent(RuntimeEnvironment.getApplication(), kind), kind);
  }

  /** Opens an application by its name, in any case; an unknown name does nothing. */
  void open(String app) {
    Class<? extends Activity> kind = Apps.find(app);
    if (kind != null) {
      launch(kind);
    }
  }

  /** Carries out the starts and finishes that activities asked for; returns whether there were any. */
  boolean update() {
    boolean changed = false;
    while (!activities.isEmpty()) {
      Activity top = activities.peek().get();
      Intent wanted = Shadows.shadowOf(top).getNextStartedActivity();
      if (wanted != null) {
        launch(wanted, Apps.kindOf(wanted));
      } else if (top.isFinishing() && activities.size() > 1) {
        leave();
        activities.peek().start().resume();
      } else {
        break;
      }
      changed = true;
    }
    return changed;
  }

  void goHome() {
    update();
    if (activities.size() > 1) {
      while (activities.size() > 1) {
        leave();
      }
      activities.peek().start().resume();
    }
  }

  void clear() {
    while (!activities.isEmpty()) {
      leave();
    }
  }

  private void launch(Intent intent, Class<? extends Activity> kind) {
    if (!activities.isEmpty()) {
      activities.peek().pause().stop();
    }
    ActivityController<? extends Activity> controller = Robolectric.buildActivity(kind, intent);
    activities.push(controller);
    controller.setup();
  }

  /** Ends the top activity; one below is stopped already. */
  private void leave() {
    ActivityController<? extends Activity> top = activities.pop();
    top.close();
  }
}
