package dart.phone;

import android.app.UiAutomation;
import android.graphics.Bitmap;
import android.os.SystemClock;
import android.util.Base64;
import android.view.InputDevice;
import android.view.KeyEvent;
import android.view.MotionEvent;
import android.view.View;
import android.view.inspector.WindowInspector;
import android.widget.EditText;
import androidx.test.platform.app.InstrumentationRegistry;
import java.io.ByteArrayOutputStream;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.shadows.ShadowLooper;

/** The phone's screen, touch screen and keyboard. Its clock is virtual: it advances by events only. */
final class Device {
  /** Virtual time after which animations have ended. */
  private static final int SETTLE_MS = 600;

  private static final int FRAME_MS = 20;

  private final UiAutomation automation = InstrumentationRegistry.getInstrumentation().getUiAutomation();
  private final Storage storage = new Storage(RuntimeEnvironment.getApplication());
  private final ActivityStack stack = new ActivityStack();
  private final Properties properties = (Properties) System.getProperties().clone();
  private long fingerDownMs = -1;
  private int metaState;

  /** Fills the storage, and opens an application above the launcher. */
  void start(String qualifiers, String app, JSONObject state) throws JSONException {
    RuntimeEnvironment.setQualifiers(qualifiers);
    InstrumentationRegistry.getInstrumentation().setInTouchMode(true);
    storage.fill(state);
    stack.launch(Launcher.class);
    stack.open(app);
    settle();
  }

  void end() {
    stack.clear();
    storage.close();
    System.setProperties(properties); // Robolectric resets Android alone.
  }

  JSONObject state() throws JSONException {
    return storage.read();
  }

  /** Performs input events in order while modifiers are held, and lets the screen come to rest. */
  void perform(JSONArray events, int held) throws JSONException {
    metaState = held;
    for (int index = 0; index < events.length(); index++) {
      perform(events.getJSONArray(index), events.getJSONArray(index).getString(0));
      stack.update();
    }
    if (events.length() > 0) {
      settle();
    }
  }

  /** Returns the screen as a PNG in base64, if wanted. */
  JSONObject screen(boolean wanted) throws JSONException {
    JSONObject answer = new JSONObject();
    if (wanted) {
      Bitmap bitmap = automation.takeScreenshot();
      ByteArrayOutputStream png = new ByteArrayOutputStream();
      bitmap.compress(Bitmap.CompressFormat.PNG, 100, png);
      answer.put("width", bitmap.getWidth()).put("height", bitmap.getHeight());
      answer.put("image", Base64.encodeToString(png.toByteArray(), Base64.NO_WRAP));
    }
    return answer;
  }

  private void perform(JSONArray event, String kind) throws JSONException {
    switch (kind) {
      case "down":
      case "move":
      case "up":
        touch(kind, event.getInt(1), event.getInt(2));
        break;
      case "wait":
        advance(event.getInt(1));
        break;
      case "text":
        type(event.getString(1));
        break;
      case "key":
        press(event.getString(1), event.getInt(2));
        break;
      case "home":
        stack.goHome();
        break;
      case "open":
        stack.goHome();
        stack.open(event.getString(1));
        break;
      case "replace":
        replaceText(event.getString(1));
        break;
      default:
        throw new IllegalArgumentException("unknown event: " + event);
    }
  }

  /** One finger; a move or a release without a press does nothing. */
  private void touch(String kind, int x, int y) {
    long now = SystemClock.uptimeMillis();
    if (kind.equals("down")) {
      if (fingerDownMs >= 0) {
        touch("up", x, y);
      }
      fingerDownMs = now;
    } else if (fingerDownMs < 0) {
      return;
    }
    int action = kind.equals("down") ? MotionEvent.ACTION_DOWN : MotionEvent.ACTION_MOVE;
    MotionEvent event =
        MotionEvent.obtain(fingerDownMs, now, kind.equals("up") ? MotionEvent.ACTION_UP : action, x, y, metaState);
    event.setSource(InputDevice.SOURCE_TOUCHSCREEN);
    automation.injectInputEvent(event, true);
    event.recycle();
    if (kind.equals("up")) {
      fingerDownMs = -1;
    }
    advance(FRAME_MS);
  }

  /** Sends characters as an input method without keys does. */
  private void type(String text) {
    automation.injectInputEvent(new KeyEvent(SystemClock.uptimeMillis(), text, 0, 0), true);
    advance(FRAME_MS);
  }

  /** Replaces the text of the focused field, if any. */
  private void replaceText(String text) {
    View focused = topWindow().findFocus();
    if (focused instanceof EditText) {
      ((EditText) focused).setText(text);
      ((EditText) focused).setSelection(((EditText) focused).length());
    }
  }

  private void press(String name, int metaState) {
    int code = KeyEvent.keyCodeFromString(name);
    long now = SystemClock.uptimeMillis();
    automation.injectInputEvent(new KeyEvent(now, now, KeyEvent.ACTION_DOWN, code, 0, metaState), true);
    automation.injectInputEvent(new KeyEvent(now, now, KeyEvent.ACTION_UP, code, 0, metaState), true);
    advance(FRAME_MS);
  }

  private static View topWindow() {
    List<View> windows = WindowInspector.getGlobalWindowViews();
    return windows.get(windows.size() - 1);
  }

  private void settle() {
    stack.update();
    advance(SETTLE_MS);
    if (stack.update()) {
      advance(SETTLE_MS);
    }
    for (View window : WindowInspector.getGlobalWindowViews()) {
      window.jumpDrawablesToCurrentState(); // Some of them would be animated by Android's render thread.
    }
  }

  private static void advance(int milliseconds) {
    ShadowLooper.idleMainLooper(milliseconds, TimeUnit.MILLISECONDS);
  }
}
