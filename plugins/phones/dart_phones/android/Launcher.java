package dart.phone;

import android.content.Intent;
import android.graphics.Color;
import android.graphics.drawable.GradientDrawable;
import android.view.Gravity;
import android.widget.GridLayout;
import android.widget.TextView;
import java.util.Map;

/** The home screen: an icon for each application. */
public final class Launcher extends Page {
  private static final int COLUMNS = 2;
  private static final int ICON_DP = 48;
  private static final int[] COLORS = {
    0xFF455A64, 0xFF1976D2, 0xFF7B1FA2, 0xFFF9A825, 0xFF388E3C, 0xFFD32F2F,
  };

  @Override
  void build() {
    setTitle("Home");
    GridLayout grid = new GridLayout(this);
    grid.setColumnCount(COLUMNS);
    int number = 0;
    for (Map.Entry<String, ?> app : Apps.BY_NAME.entrySet()) {
      TextView icon = new TextView(this);
      icon.setText(app.getKey());
      icon.setTextColor(Color.BLACK);
      icon.setGravity(Gravity.CENTER);
      icon.setPadding(0, pixels(ICON_DP / 4), 0, pixels(ICON_DP / 4));
      GradientDrawable circle = new GradientDrawable();
      circle.setShape(GradientDrawable.OVAL);
      circle.setColor(COLORS[number++ % COLORS.length]);
      circle.setBounds(0, 0, pixels(ICON_DP), pixels(ICON_DP));
      icon.setCompoundDrawables(null, circle, null, null);
      icon.setOnClickListener(view -> startActivity(new Intent(this, Apps.find(app.getKey()))));
      GridLayout.LayoutParams place = new GridLayout.LayoutParams();
      place.width = 0;
      place.columnSpec = GridLayout.spec(GridLayout.UNDEFINED, 1f);
      grid.addView(icon, place);
    }
    add(grid);
  }

  /** The launcher is never left. */
  @Override
  public void onBackPressed() {}
}
