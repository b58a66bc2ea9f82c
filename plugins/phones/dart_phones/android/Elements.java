package dart.phone;

import android.graphics.Rect;
import android.view.View;
import android.view.ViewGroup;
import android.view.inspector.WindowInspector;
import android.widget.Checkable;
import android.widget.TextView;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** The shown views of the window that has the input, for oracles. */
final class Elements {
  private Elements() {}

  static JSONArray ofTopWindow() throws JSONException {
    JSONArray elements = new JSONArray();
    List<View> windows = WindowInspector.getGlobalWindowViews();
    if (!windows.isEmpty()) {
      add(windows.get(windows.size() - 1), elements);
    }
    return elements;
  }

  private static void add(View view, JSONArray elements) throws JSONException {
    if (view.getVisibility() != View.VISIBLE) {
      return;
    }
    elements.put(describe(view));
    if (view instanceof ViewGroup) {
      ViewGroup group = (ViewGroup) view;
      for (int index = 0; index < group.getChildCount(); index++) {
        add(group.getChildAt(index), elements);
      }
    }
  }

  private static JSONObject describe(View view) throws JSONException {
    Rect seen = new Rect();
    boolean shown = view.getGlobalVisibleRect(seen);
    int[] corner = new int[2];
    view.getRootView().getLocationOnScreen(corner);
    JSONArray box = new JSONArray().put(seen.left + corner[0]).put(seen.top + corner[1]);
    box.put(shown ? seen.width() : 0).put(shown ? seen.height() : 0);
    JSONArray states = new JSONArray();
    if (view instanceof Checkable && ((Checkable) view).isChecked()) {
      states.put("checked");
    }
    if (view.isFocused()) {
      states.put("focused");
    }
    String text = view instanceof TextView ? ((TextView) view).getText().toString() : "";
    JSONObject element = new JSONObject().put("role", view.getClass().getSimpleName()).put("name", nameOf(view, text));
    return element.put("text", text).put("states", states).put("box", box);
  }

  /** Returns the description or the hint of a view, else its text. */
  private static String nameOf(View view, String text) {
    CharSequence hint = view instanceof TextView ? ((TextView) view).getHint() : null;
    CharSequence name = view.getContentDescription() != null ? view.getContentDescription() : hint;
    return name == null ? text : name.toString();
  }
}
