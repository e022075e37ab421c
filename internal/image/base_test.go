// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestBaseInRecords checks the form of images in machines' records, which earlier versions wrote, and that the image is
// read from it with the kind of its source.
func TestBaseInRecords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Base{
		`{"path":"","format":"","size":0,"stamp":""}`: {},
		`{"source":"file:///images/a.img","path":"/images/a.img","format":"raw","size":512,"stamp":"512-1"}`: {
			Ref: ParseRef("file:///images/a.img", ""), Path: "/images/a.img", Format: "raw", Size: 512, Stamp: "512-1",
		},
		`{"source":"https://user:pass@host/a","checksum":"sha256:0","path":"sha256-0","format":"qcow2","size":1024,"stamp":"700"}`: {
			Ref: ParseRef("https://user:pass@host/a", "sha256:0"), Path: "sha256-0", Format: "qcow2", Size: 1024, Stamp: "700",
		},
	} {
		var read Base
		assert.NoError(t, json.Unmarshal([]byte(text), &read))
		written, err := json.Marshal(want)
		assert.NoError(t, err)
		assert.True(t, read == want, "%s is read as %+v", text, read)
		assert.Equal(t, "the record", string(written), text)
	}
}
