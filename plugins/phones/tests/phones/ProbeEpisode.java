package dart.phone;

import android.accounts.Account;
import android.accounts.AccountManager;
import android.app.AlarmManager;
import android.app.Notification;
import android.app.NotificationChannel;
import android.app.NotificationManager;
import android.app.PendingIntent;
import android.content.ClipData;
import android.content.ClipboardManager;
import android.content.Context;
import android.content.Intent;
import android.provider.Settings;
import android.view.KeyEvent;
import android.view.MotionEvent;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.TimeZone;
import org.json.JSONArray;
import org.junit.Test;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.annotation.LooperMode;

/** An episode with applications that note the input, write all that one can, and look for it. */
@Config(sdk = Episode.API_LEVEL)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@LooperMode(LooperMode.Mode.PAUSED)
public final class ProbeEpisode extends Episode {
  private static final String LEFT = "left";

  @Override
  @Test
  public void play() throws Exception {
    Apps.BY_NAME.put("Probe", Probe.class);
    Apps.BY_NAME.put("Leave", Leave.class);
    Apps.BY_NAME.put("Look", Look.class);
    super.play();
  }

  private static void note(Object... words) {
    try {
      byte[] line = (new JSONArray(words) + "\n").getBytes(StandardCharsets.UTF_8);
      File notes = new File(System.getProperty("java.io.tmpdir"), "noted");
      Files.write(notes.toPath(), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    } catch (IOException | org.json.JSONException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Notes touches with their times, keys and texts, each with the modifiers. */
  public static final class Probe extends Page {
    @Override
    void build() {}

    @Override
    public boolean dispatchTouchEvent(MotionEvent event) {
      String[] kinds = {"press", "release", "move"};
      int x = (int) event.getRawX();
      int y = (int) event.getRawY();
      note(kinds[event.getActionMasked()], x, y, event.getEventTime(), event.getMetaState());
      return true;
    }

    @Override
    public boolean dispatchKeyEvent(KeyEvent event) {
      if (event.getAction() == KeyEvent.ACTION_MULTIPLE) {
        note("text", event.getCharacters(), event.getMetaState());
      } else {
        String kind = event.getAction() == KeyEvent.ACTION_DOWN ? "down" : "up";
        note(kind, event.getKeyCode(), event.getMetaState());
      }
      return true;
    }
  }

  private static File[] folders(Context context) {
    return new File[] {
      context.getFilesDir(), context.getCacheDir(), context.getNoBackupFilesDir(), context.getCodeCacheDir(),
      context.getDataDir(),
    };
  }

  /** Writes all that an application can. */
  public static final class Leave extends Page {
    @Override
    void build() {
      getSharedPreferences(LEFT, MODE_PRIVATE).edit().putString(LEFT, LEFT).commit();
      openOrCreateDatabase(LEFT, MODE_PRIVATE, null).close();
      for (File folder : folders(this)) {
        try {
          folder.mkdirs();
          Files.write(new File(folder, LEFT).toPath(), new byte[1]);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
      Settings.Global.putString(getContentResolver(), LEFT, LEFT);
      Settings.System.putString(getContentResolver(), LEFT, LEFT);
      Settings.Secure.putString(getContentResolver(), LEFT, LEFT);
      getSystemService(ClipboardManager.class).setPrimaryClip(ClipData.newPlainText(LEFT, LEFT));
      AccountManager.get(this).addAccountExplicitly(new Account(LEFT, LEFT), LEFT, null);
      NotificationManager notifications = getSystemService(NotificationManager.class);
      notifications.createNotificationChannel(new NotificationChannel(LEFT, LEFT, 3));
      notifications.notify(1, new Notification.Builder(this, LEFT).setSmallIcon(1).build());
      PendingIntent later = PendingIntent.getBroadcast(this, 0, new Intent(LEFT), PendingIntent.FLAG_IMMUTABLE);
      getSystemService(AlarmManager.class).set(AlarmManager.RTC, Long.MAX_VALUE, later);
      sendStickyBroadcast(new Intent(LEFT));
      Locale.setDefault(Locale.KOREA);
      TimeZone.setDefault(TimeZone.getTimeZone("Asia/Seoul"));
      System.setProperty(LEFT, LEFT);
    }
  }

  /** Notes the places where something of that is found. */
  public static final class Look extends Page {
    @Override
    void build() {
      List<String> found = new ArrayList<>();
      add(found, "preferences", getSharedPreferences(LEFT, MODE_PRIVATE).contains(LEFT));
      add(found, "database", getDatabasePath(LEFT).exists());
      for (File folder : folders(this)) {
        add(found, folder.getName(), new File(folder, LEFT).exists());
      }
      add(found, "global setting", Settings.Global.getString(getContentResolver(), LEFT) != null);
      add(found, "system setting", Settings.System.getString(getContentResolver(), LEFT) != null);
      add(found, "secure setting", Settings.Secure.getString(getContentResolver(), LEFT) != null);
      add(found, "clipboard", getSystemService(ClipboardManager.class).hasPrimaryClip());
      add(found, "account", AccountManager.get(this).getAccounts().length > 0);
      NotificationManager notifications = getSystemService(NotificationManager.class);
      add(found, "channel", notifications.getNotificationChannel(LEFT) != null);
      add(found, "notification", notifications.getActiveNotifications().length > 0);
      int existing = PendingIntent.FLAG_IMMUTABLE | PendingIntent.FLAG_NO_CREATE;
      add(found, "pending intent", PendingIntent.getBroadcast(this, 0, new Intent(LEFT), existing) != null);
      add(found, "sticky broadcast", registerReceiver(null, new android.content.IntentFilter(LEFT)) != null);
      add(found, "locale", Locale.getDefault().equals(Locale.KOREA));
      add(found, "time zone", TimeZone.getDefault().getID().equals("Asia/Seoul"));
      add(found, "property", System.getProperty(LEFT) != null);
      note(found.toArray());
    }

    private static void add(List<String> found, String place, boolean there) {
      if (there) {
        found.add(place);
      }
    }
  }
}
