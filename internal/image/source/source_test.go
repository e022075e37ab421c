// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/json"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestParse checks the kind and the name of each form, and that a source is read from a record as
// it was written.
func TestParse(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0", 64)
	for text, want := range map[string]struct {
		kind                             Kind
		name                             string
		isFetched, isContainer, isPinned bool
	}{
		"":                              {None, "", false, false, false},
		"/images/a.img":                 {File, "/images/a.img", false, false, false},
		"file:///images/a.img":          {File, "/images/a.img", false, false, false},
		"file://images/a.img":           {File, "images/a.img", false, false, false},
		"http://host/a.img":             {Web, "http://host/a.img", true, false, false},
		"HTTPS://host/a.img":            {Web, "HTTPS://host/a.img", true, false, false},
		"oci://registry.example/disk:1": {RegistryDisk, "registry.example/disk:1", true, false, false},
		"oci://host/disk@" + digest:     {RegistryDisk, "host/disk@" + digest, true, false, false},
		"oci:///images/a.img":           {RegistryDisk, "/images/a.img", true, false, false},
		"cloud://debian/13":             {Catalogue, "debian/13", true, false, false},
		"pvc://golden":                  {Claim, "golden", false, false, false},
		"drover://built-in":             {BuiltIn, "drover://built-in", true, true, false},
		"drover://other":                {Unknown, "drover://other", false, false, false},
		"ftp://host/a.img":              {Unknown, "ftp://host/a.img", false, false, false},
		"python":                        {Container, "python", true, true, false},
		"registry.example:5000/app:1":   {Container, "registry.example:5000/app:1", true, true, false},
		"app:1@" + digest:               {Container, "app:1@" + digest, true, true, true},
		"images/a b":                    {Unknown, "images/a b", false, false, false},
		"UPPER":                         {Unknown, "UPPER", false, false, false},
		"ghcr.io/a/b@" + digest:         {Container, "ghcr.io/a/b@" + digest, true, true, true},
		"a@sha256:1":                    {Unknown, "a@sha256:1", false, false, false},
		"user:secret@host/a":            {Unknown, "user:secret@host/a", false, false, false},
		"../a.img":                      {Unknown, "../a.img", false, false, false},
	} {
		s := Parse(text)
		if s.Kind != want.kind || s.Name != want.name || s.IsFetched() != want.isFetched || s.IsContainer() != want.isContainer || s.IsPinned() != want.isPinned {
			t.Errorf("%q: got %+v, fetched: %v, of a container: %v, pinned: %v, want %+v", text, s, s.IsFetched(), s.IsContainer(), s.IsPinned(), want)
		}
		type record struct {
			Source Source `json:"source,omitzero"`
		}
		var read record
		written, err := json.Marshal(record{s})
		assert.NoError(t, err)
		assert.NoError(t, json.Unmarshal(written, &read))
		assert.True(t, read.Source == s && s.Text() == text && (text != "" || string(written) == "{}"),
			"%q: the record %s is read as %+v", text, written, read.Source)
	}
}

// TestSchemeInCapitals checks that a URL whose user cannot be told from its path is not shown, however its scheme is
// written.
func TestSchemeInCapitals(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"https", "HTTPS", "Http"} {
		s := Parse(scheme + "://user:pass/hunter2@host/x")
		assert.True(t, s.Kind == Web && s.String() == scheme+"://...", "it is %+v, shown as %s", s, s)
	}
}

// FuzzRedact checks that neither credentials nor a query are shown, whatever is around them.
func FuzzRedact(f *testing.F) {
	const secret = "hunter2secret"
	for _, c := range [][3]string{{"https", "host/path", "x"}, {"oci", "host:5000/name:tag", ""}, {"http", "h", "a@b/c"}} {
		f.Add(c[0], c[1], c[2])
	}
	f.Fuzz(func(t *testing.T, scheme, rest, before string) {
		if strings.ContainsAny(scheme, ":/") || scheme == "file" || scheme == "" {
			return
		}
		// The host of a URL begins behind the last @ before the first slash.
		user := strings.NewReplacer("/", "", "?", "", "#", "").Replace(before) + secret
		for _, text := range []string{
			scheme + "://" + user + ":x@" + rest, scheme + "://u:" + user + "@" + rest, scheme + "://" + rest + "?token=" + secret, scheme + "://" + rest + "#" + secret,
		} {
			shown := Parse(text).String()
			assert.True(t, !strings.Contains(shown, secret), "%q is shown as %q", text, shown)
		}
	})
}
