// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// list reads the archive back, by the kernel's description of the format.
func list(t *testing.T, text []byte) (lines []string) {
	t.Helper()
	field := func(i int) int {
		n, err := strconv.ParseUint(string(text[6+8*i:14+8*i]), 16, 32)
		assert.NoError(t, err)
		return int(n)
	}
	for {
		assert.Require(t, string(text[:6]) == "070701", "%.20q is no header", text)
		mode, size, major, minor, length := field(1), field(6), field(9), field(10), field(11)
		name := string(text[110 : 110+length-1])
		text = text[(110+length+3)/4*4:]
		content := text[:size]
		text = text[(size+3)/4*4:]
		if name == "TRAILER!!!" {
			return lines
		}
		lines = append(lines, fmt.Sprintf("%o %s %d:%d %s", mode, name, major, minor, content))
	}
}

// TestWrite checks what the kernel unpacks, and that it is the same each time.
func TestWrite(t *testing.T) {
	t.Parallel()
	var first, second bytes.Buffer
	files := []File{{"modules/a.ko", []byte("aaaaa")}, {"modules/b.ko", nil}, {"plain", []byte("p")}}
	assert.NoError(t, Write(&first, []byte("program"), files))
	assert.NoError(t, Write(&second, []byte("program"), files))
	assert.True(t, bytes.Equal(first.Bytes(), second.Bytes()), "two archives differ")
	want := []string{
		"40755 dev 0:0 ", "20600 dev/console 5:1 ", "20600 dev/null 1:3 ", "100755 init 0:0 program",
		"40755 modules 0:0 ", "100644 modules/a.ko 0:0 aaaaa", "100644 modules/b.ko 0:0 ", "100644 plain 0:0 p",
	}
	got := list(t, first.Bytes())
	assert.True(t, slices.Equal(got, want), "got %q", got)
	for _, name := range []string{"", "/init", "../x", "a/../b"} {
		assert.ErrorSays(t, name, Write(&first, nil, []File{{Name: name}}), "want a relative path")
	}
}
