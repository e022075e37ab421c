// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

type part struct {
	Name string `json:"name"`
	Size int64  `json:"size,omitempty"`
}

type sample struct {
	Header

	Name  string          `json:"name"`
	Flag  bool            `json:"flag,omitempty"`
	Part  *part           `json:"part,omitempty"`
	Parts []part          `json:"parts,omitempty"`
	Named map[string]part `json:"named,omitempty"`
}

// TestUnknownFields checks that fields of a later version survive a rewrite, at any depth, and that fields which the
// rewrite removes do not come back.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	text := `{"name": "a", "flag": true, "later": {"n": 9007199254740993}, "part": {"name": "p", "size": 1, "later": 1},
		"parts": [{"name": "same", "later": 2}, {"name": "changed", "later": 3}], "named": {"kept": {"name": "k", "later": 4}, "gone": {"name": "g"}}, "mustUnderstand": {}}`
	for name, c := range map[string]struct {
		change func(*sample)
		want   string
	}{
		"nothing": {func(*sample) {}, `{
  "flag": true,
  "later": {
    "n": 9007199254740993
  },
  "mustUnderstand": {},
  "name": "a",
  "named": {
    "gone": {
      "name": "g"
    },
    "kept": {
      "later": 4,
      "name": "k"
    }
  },
  "part": {
    "later": 1,
    "name": "p",
    "size": 1
  },
  "parts": [
    {
      "later": 2,
      "name": "same"
    },
    {
      "later": 3,
      "name": "changed"
    }
  ]
}
`},
		"values": {func(s *sample) {
			s.Flag, s.Name, s.Part.Size = false, "b", 2
			s.Parts[1].Name = "another"
			delete(s.Named, "gone")
		}, `{
  "later": {
    "n": 9007199254740993
  },
  "mustUnderstand": {},
  "name": "b",
  "named": {
    "kept": {
      "later": 4,
      "name": "k"
    }
  },
  "part": {
    "later": 1,
    "name": "p",
    "size": 2
  },
  "parts": [
    {
      "later": 2,
      "name": "same"
    },
    {
      "name": "another"
    }
  ]
}
`},
		"parts": {func(s *sample) { s.Part, s.Parts, s.Named = nil, nil, nil }, `{
  "flag": true,
  "later": {
    "n": 9007199254740993
  },
  "mustUnderstand": {},
  "name": "a"
}
`},
	} {
		s, err := Decode[sample]([]byte(text))
		assert.NoError(t, err)
		c.change(&s)
		got, err := Encode(s)
		assert.NoError(t, err)
		assert.Equal(t, name, string(got), c.want)
		_, err = Decode[sample](got)
		assert.NoError(t, err)
	}
}

// TestMustUnderstand checks that an unknown addition is refused by its name, before a field whose type it changes.
func TestMustUnderstand(t *testing.T) {
	t.Parallel()
	_, err := Decode[sample]([]byte(`{"name": {"encrypted": "x"}, "mustUnderstand": {"encryption": "0.3.0"}}`))
	assert.ErrorSays(t, "an unknown addition", err, `mustUnderstand has "encryption", which Drover 0.3.0 and later versions know, and this is Drover dev: upgrade`)
	later, ok := errors.AsType[*UnknownError](err)
	assert.True(t, ok && later.Name == "encryption", "it is %v", err)
	_, err = Decode[sample]([]byte(`{"name": "a"} {}`))
	assert.True(t, err != nil, "two values are one record")
}

// TestEdited checks that a mistyped field is reported, and that one of a later version is not.
func TestEdited(t *testing.T) {
	t.Parallel()
	_, err := DecodeEdited[sample]([]byte(`{"name": "a", "falg": true}`))
	assert.ErrorSays(t, "a mistyped field", err, `unknown field "falg"`)
	_, err = DecodeEdited[sample]([]byte(`{"name": "a", "falg": true, "mustUnderstand": {}}`))
	assert.NoError(t, err)
}

// TestMarkFolder checks that the data version only rises, and who wrote it.
func TestMarkFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, DataVersionFile)
	for _, needed := range []int{0, DataVersion, 0} {
		assert.NoError(t, MarkFolder(folder, needed))
	}
	found, err := readVersion(folder)
	assert.True(t, err == nil && found.ReadableFrom == DataVersion && found.WrittenBy == Version, "%+v, %v", found, err)
	later := []byte(`{"mustUnderstand": {}, "readableFrom": 99, "writtenBy": "9.9.9"}`)
	assert.NoError(t, os.WriteFile(path, later, 0o600))
	for what, err := range map[string]error{"check": CheckFolder(folder), "mark": MarkFolder(folder, 0)} {
		assert.ErrorSays(t, what, err, "was written by Drover 9.9.9 and can be read from data version 99 on, and this Drover dev reads up to 1: install Drover 9.9.9 or a later version")
	}
	kept, err := os.ReadFile(path)
	assert.True(t, err == nil && string(kept) == string(later), "it holds %s, %v", kept, err)
}

// TestPreinst checks that the Debian package reads the same data versions.
func TestPreinst(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../config/debian/preinst")
	assert.NoError(t, err)
	found := regexp.MustCompile(`(?m)^readable=(.*)$`).FindSubmatch(script)
	assert.True(t, found != nil && string(found[1]) == strconv.Itoa(firstVersion), "it has %q, want %d", found, firstVersion)
}
