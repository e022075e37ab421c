// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestDisk checks that a disk has whole sectors and the contents that were encoded.
func TestDisk(t *testing.T) {
	t.Parallel()
	all := []Content{
		{Path: "/etc/tls", Revision: "1", Files: []File{{Path: "a", Mode: 0o400, Data: []byte("secret\x00\xff")}, {Path: "b/c", Mode: 0o644}}},
		{Path: "/most", Revision: "2", Files: []File{{Path: "x", Data: bytes.Repeat([]byte{0xff}, MaxBytes)}}},
		{Path: "/empty", Revision: "3"},
	}
	disk, err := Encode(all)
	assert.NoError(t, err)
	assert.True(t, len(disk) > 0 && len(disk)%sector == 0, "the disk has %d bytes", len(disk))
	var got []Content
	assert.NoError(t, Decode(bytes.NewReader(disk), func(c Content) error {
		got = append(got, c)
		return nil
	}))
	assert.True(t, reflect.DeepEqual(got, all), "%d contents of %d come back, or others", len(got), len(all))
}

// TestBadContent checks that contents that no folder may have are refused, without a quotation of their text.
func TestBadContent(t *testing.T) {
	t.Parallel()
	file := func(path string) Content { return Content{Path: "/a", Files: []File{{Path: path}}} }
	for name, c := range map[string]Content{
		"root": {Path: "/"}, "relative": {Path: "a"}, "no path": file(""), "out": file("../x"), "inside out": file("a/../../x"),
		"absolute": file("/x"), "data link": file("..data"), "dots": file("..x/y"), "itself": file("."), "unclean": file("a//b"),
		"mode":     {Path: "/a", Files: []File{{Path: "x", Mode: 0o4755}}},
		"too much": {Path: "/a", Files: []File{{Path: "x", Data: make([]byte, MaxBytes)}, {Path: "y", Data: []byte("y")}}},
		"too many": {Path: "/a", Files: make([]File, MaxFiles+1)},
	} {
		assert.True(t, c.Check() != nil, "%s is allowed", name)
		text, err := json.Marshal(c)
		assert.NoError(t, err)
		_, err = Parse(bytes.NewReader(text))
		assert.True(t, err != nil, "%s is parsed", name)
	}
	for _, text := range []string{"", "{", `{"path": "/a", "files": hunter2}`, `{"path": "/a", "files": [{"mode": "hunter2"}]}`, strings.Repeat(" ", MaxJSON+1)} {
		_, err := Parse(strings.NewReader(text))
		assert.True(t, err != nil && !strings.Contains(err.Error(), "hunter2"), "%.80q: the error is %v", text, err)
	}
}
