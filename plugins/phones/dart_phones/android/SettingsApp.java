package dart.phone;

import android.widget.Switch;

/** Switches of system settings. */
public final class SettingsApp extends Page {
  static final String[] NAMES = {"Wi-Fi", "Bluetooth", "Airplane mode", "Location", "Hotspot"};
  private static final int ROW_DP = 48;

  @Override
  void build() {
    setTitle("Settings");
    for (String name : NAMES) {
      Switch row = new Switch(this);
      row.setText(name);
      row.setMinHeight(pixels(ROW_DP));
      row.setChecked(storage().isOn(name));
      row.setOnCheckedChangeListener((button, on) -> storage().set(name, on));
      add(row);
    }
  }
}
