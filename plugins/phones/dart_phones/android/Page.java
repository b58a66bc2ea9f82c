package dart.phone;

import android.app.Activity;
import android.os.Bundle;
import android.text.InputType;
import android.view.View;
import android.view.ViewGroup;
import android.widget.ArrayAdapter;
import android.widget.Button;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.ListView;

/** An activity of one column of views: the parts from which the applications are made. */
abstract class Page extends Activity {
  private static final int GAP_DP = 12;
  private LinearLayout column;
  private Storage storage;

  /** Adds the views of the page. */
  abstract void build();

  @Override
  protected void onCreate(Bundle saved) {
    setTheme(android.R.style.Theme_Material_Light_DarkActionBar);
    super.onCreate(saved);
    storage = new Storage(this);
    column = new LinearLayout(this);
    column.setOrientation(LinearLayout.VERTICAL);
    column.setFocusableInTouchMode(true); // No field has the focus before it is touched, unless it asks for it.
    column.setPadding(pixels(GAP_DP), pixels(GAP_DP), pixels(GAP_DP), pixels(GAP_DP));
    setContentView(column);
    build();
  }

  @Override
  protected void onDestroy() {
    storage.close();
    super.onDestroy();
  }

  Storage storage() {
    return storage;
  }

  int pixels(int dp) {
    return Math.round(dp * getResources().getDisplayMetrics().density);
  }

  /** Removes all views, before they are added anew. */
  void clear() {
    column.removeAllViews();
  }

  void add(View view) {
    column.addView(view, ViewGroup.LayoutParams.MATCH_PARENT, ViewGroup.LayoutParams.WRAP_CONTENT);
  }

  Button addButton(String label, Runnable pressed) {
    Button button = new Button(this);
    button.setText(label);
    button.setOnClickListener(view -> pressed.run());
    add(button);
    return button;
  }

  /** Adds a field without a cursor, which would blink. */
  EditText addField(String hint, int kind) {
    EditText field = new EditText(this);
    field.setHint(hint);
    field.setInputType(kind | InputType.TYPE_TEXT_FLAG_NO_SUGGESTIONS);
    field.setCursorVisible(false);
    add(field);
    return field;
  }

  /** Adds a list that takes the room which the other views leave. */
  ListView addList(String... rows) {
    ListView list = new ListView(this);
    list.setAdapter(new ArrayAdapter<>(this, android.R.layout.simple_list_item_1, rows));
    list.setScrollbarFadingEnabled(false); // The screen changes by actions only.
    column.addView(list, new LinearLayout.LayoutParams(ViewGroup.LayoutParams.MATCH_PARENT, 0, 1));
    return list;
  }
}
