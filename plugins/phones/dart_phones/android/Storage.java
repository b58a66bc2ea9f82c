package dart.phone;

import android.content.ContentValues;
import android.content.Context;
import android.content.SharedPreferences;
import android.database.Cursor;
import android.database.sqlite.SQLiteDatabase;
import android.provider.Settings;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Iterator;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** What the applications keep: system settings, tables of SQLite, files of notes, and preferences. */
final class Storage {
  private static final String[] TABLES = {"contacts", "alarms", "messages"};
  private static final String[][] COLUMNS = {{"name", "phone"}, {"time", "enabled"}, {"sender", "text"}};
  private final Context context;
  private final SQLiteDatabase database;

  Storage(Context context) {
    this.context = context.getApplicationContext();
    this.database = this.context.openOrCreateDatabase("phone.db", Context.MODE_PRIVATE, null);
    for (int table = 0; table < TABLES.length; table++) {
      database.execSQL("CREATE TABLE IF NOT EXISTS " + TABLES[table] + " (" + String.join(", ", COLUMNS[table]) + ")");
    }
  }

  /** Writes a state in the form of {@link #read} into an empty phone. */
  void fill(JSONObject state) throws JSONException {
    JSONObject settings = state.getJSONObject("settings");
    for (Iterator<String> names = settings.keys(); names.hasNext(); ) {
      String name = names.next();
      set(name, settings.getBoolean(name));
    }
    for (int table = 0; table < TABLES.length; table++) {
      JSONArray rows = state.getJSONArray(TABLES[table]);
      for (int row = 0; row < rows.length(); row++) {
        insert(TABLES[table], rows.getJSONArray(row).getString(0), rows.getJSONArray(row).getString(1));
      }
    }
    JSONArray notes = state.getJSONArray("notes");
    for (int note = 0; note < notes.length(); note++) {
      write(notes.getString(note));
    }
  }

  JSONObject read() throws JSONException {
    JSONObject state = new JSONObject().put("settings", new JSONObject());
    for (String name : SettingsApp.NAMES) {
      state.getJSONObject("settings").put(name, isOn(name));
    }
    for (String table : TABLES) {
      JSONArray rows = new JSONArray();
      for (String[] row : rows(table)) {
        rows.put(new JSONArray(Arrays.asList(row)));
      }
      state.put(table, rows);
    }
    state.put("notes", new JSONArray(Arrays.asList(notes())));
    SharedPreferences survey = survey();
    return state.put("survey", survey.getAll().isEmpty() ? JSONObject.NULL : new JSONObject(survey.getAll()));
  }

  boolean isOn(String setting) {
    return Settings.Global.getInt(context.getContentResolver(), keyOf(setting), 0) == 1;
  }

  void set(String setting, boolean on) {
    Settings.Global.putInt(context.getContentResolver(), keyOf(setting), on ? 1 : 0);
  }

  /** Returns the rows of a table in the order of their insertion. */
  String[][] rows(String table) {
    String[] columns = columnsOf(table);
    try (Cursor cursor = database.query(table, columns, null, null, null, null, "rowid")) {
      String[][] rows = new String[cursor.getCount()][];
      while (cursor.moveToNext()) {
        rows[cursor.getPosition()] = new String[] {cursor.getString(0), cursor.getString(1)};
      }
      return rows;
    }
  }

  void insert(String table, String first, String second) {
    ContentValues values = new ContentValues();
    values.put(columnsOf(table)[0], first);
    values.put(columnsOf(table)[1], second);
    database.insertOrThrow(table, null, values);
  }

  /** Deletes the rows of a table with that first column. */
  void delete(String table, String first) {
    database.delete(table, columnsOf(table)[0] + " = ?", new String[] {first});
  }

  /** Sets the second column of the rows with that first one. */
  void update(String table, String first, String second) {
    ContentValues values = new ContentValues();
    values.put(columnsOf(table)[1], second);
    database.update(table, values, columnsOf(table)[0] + " = ?", new String[] {first});
  }

  /** Returns the notes, the oldest first. */
  String[] notes() {
    File[] files = noteFolder().listFiles();
    Arrays.sort(files);
    String[] notes = new String[files.length];
    for (int index = 0; index < files.length; index++) {
      try {
        notes[index] = new String(Files.readAllBytes(files[index].toPath()), StandardCharsets.UTF_8);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    return notes;
  }

  void write(String note) {
    File file = new File(noteFolder(), String.format("%06d.txt", noteFolder().list().length));
    try {
      Files.write(file.toPath(), note.getBytes(StandardCharsets.UTF_8));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  SharedPreferences survey() {
    return context.getSharedPreferences("survey", Context.MODE_PRIVATE);
  }

  void close() {
    database.close();
  }

  private File noteFolder() {
    File folder = new File(context.getFilesDir(), "notes");
    folder.mkdirs();
    return folder;
  }

  private static String[] columnsOf(String table) {
    return COLUMNS[Arrays.asList(TABLES).indexOf(table)];
  }

  /** Returns the key of Android's settings provider: {@code wifi_on} for Wi-Fi. */
  private static String keyOf(String setting) {
    return setting.toLowerCase().replace("-", "").replace(" ", "_") + "_on";
  }
}
