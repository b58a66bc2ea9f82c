package dart.phone;

import android.content.Intent;
import android.text.InputType;
import android.widget.EditText;

/** The list of contacts, and the form of a new one. */
public final class ContactsApp extends Page {
  @Override
  void build() {
    setTitle("Contacts");
  }

  @Override
  protected void onResume() {
    super.onResume();
    clear();
    String[][] contacts = storage().rows("contacts");
    String[] names = new String[contacts.length];
    for (int row = 0; row < names.length; row++) {
      names[row] = contacts[row][0] + "  " + contacts[row][1];
    }
    addList(names);
    addButton("Add contact", () -> startActivity(new Intent(this, NewContact.class)));
  }

  /** The form of a new contact. */
  public static final class NewContact extends Page {
    @Override
    void build() {
      setTitle("New contact");
      EditText name = addField("Name", InputType.TYPE_CLASS_TEXT);
      EditText phone = addField("Phone", InputType.TYPE_CLASS_PHONE);
      addButton("Save", () -> save(name.getText().toString(), phone.getText().toString()));
      name.requestFocus();
    }

    private void save(String name, String phone) {
      if (!name.isEmpty()) {
        storage().insert("contacts", name, phone);
        finish();
      }
    }
  }
}
