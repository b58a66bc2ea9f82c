package dart.phone;

import android.content.Intent;
import android.text.InputType;
import android.widget.EditText;
import android.widget.Switch;

/** The list of alarms with a switch each, and the page of a new one. */
public final class ClockApp extends Page {
  private static final int ROW_DP = 48;

  @Override
  void build() {
    setTitle("Clock");
  }

  @Override
  protected void onResume() {
    super.onResume();
    clear();
    addButton("Add alarm", () -> startActivity(new Intent(this, NewAlarm.class)));
    for (String[] alarm : storage().rows("alarms")) {
      Switch row = new Switch(this);
      row.setText(alarm[0]);
      row.setMinHeight(pixels(ROW_DP));
      row.setChecked(alarm[1].equals("on"));
      row.setOnCheckedChangeListener((button, on) -> storage().update("alarms", alarm[0], on ? "on" : "off"));
      add(row);
    }
  }

  /** Fields of hour and minute, as in the keyboard mode of Android's time picker. */
  public static final class NewAlarm extends Page {
    @Override
    void build() {
      setTitle("New alarm");
      EditText hour = addField("Hour", InputType.TYPE_CLASS_NUMBER);
      EditText minute = addField("Minute", InputType.TYPE_CLASS_NUMBER);
      addButton("Save", () -> save(numberOf(hour), numberOf(minute)));
      hour.requestFocus();
    }

    private static int numberOf(EditText field) {
      String text = field.getText().toString();
      return text.matches("[0-9]{1,2}") ? Integer.parseInt(text) : Integer.MAX_VALUE;
    }

    private void save(int hour, int minute) {
      if (hour < 24 && minute < 60) {
        storage().insert("alarms", String.format("%02d:%02d", hour, minute), "on");
        finish();
      }
    }
  }
}
