package dart.phone;

import android.text.InputType;
import android.widget.CheckBox;
import android.widget.EditText;
import android.widget.RadioButton;
import android.widget.RadioGroup;

/** A form with a field, a choice and a box; it is sent once. */
public final class SurveyApp extends Page {
  private static final String[] SIZES = {"Small", "Medium", "Large"};

  @Override
  void build() {
    setTitle("Survey");
    EditText name = addField("Name", InputType.TYPE_CLASS_TEXT);
    RadioGroup sizes = new RadioGroup(this);
    for (int index = 0; index < SIZES.length; index++) {
      RadioButton size = new RadioButton(this);
      size.setText(SIZES[index]);
      size.setId(index + 1);
      sizes.addView(size);
    }
    add(sizes);
    CheckBox news = new CheckBox(this);
    news.setText("Newsletter");
    add(news);
    addButton("Send", () -> send(name.getText().toString(), sizes.getCheckedRadioButtonId(), news.isChecked()));
    name.requestFocus();
  }

  private void send(String name, int size, boolean news) {
    if (!name.isEmpty() && size > 0) {
      storage().survey().edit().putString("name", name).putString("size", SIZES[size - 1])
          .putBoolean("newsletter", news).commit();
      finish();
    }
  }
}
