package dart.phone;

import android.app.Activity;
import android.content.Intent;
import java.util.LinkedHashMap;
import java.util.Map;

/** The applications of the phone by the names under their icons. */
final class Apps {
  static final Map<String, Class<? extends Activity>> BY_NAME = new LinkedHashMap<>();

  static {
    BY_NAME.put("Settings", SettingsApp.class);
    BY_NAME.put("Contacts", ContactsApp.class);
    BY_NAME.put("Clock", ClockApp.class);
    BY_NAME.put("Notes", NotesApp.class);
    BY_NAME.put("Survey", SurveyApp.class);
    BY_NAME.put("Messages", MessagesApp.class);
  }

  private Apps() {}

  /** Returns an application's first activity, null if there is none of that name. */
  static Class<? extends Activity> find(String name) {
    for (Map.Entry<String, Class<? extends Activity>> app : BY_NAME.entrySet()) {
      if (app.getKey().equalsIgnoreCase(name.trim())) {
        return app.getValue();
      }
    }
    return null;
  }

  static Class<? extends Activity> kindOf(Intent intent) {
    try {
      return Class.forName(intent.getComponent().getClassName()).asSubclass(Activity.class);
    } catch (ClassNotFoundException error) {
      throw new IllegalStateException(error);
    }
  }
}
