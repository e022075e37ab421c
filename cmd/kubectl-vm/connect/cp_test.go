// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"bytes"
	"io"
	"testing"

	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestCopyErrors checks that a guest's words about a copy are text to the terminal.
func TestCopyErrors(t *testing.T) {
	t.Parallel()
	o, _ := kittest.NewOptions()
	var errs bytes.Buffer
	o.ErrOut = &errs
	_, err := io.WriteString(guestStreams(nil, nil, o.ErrOut).Stderr, "\x1b]0;title\a no such file\n")
	got := errs.String()
	assert.True(t, err == nil && got == "?]0;title? no such file\n", "it prints %q, %v", got, err)
}

func TestParseCopyEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]copyEnd{
		"file":            {path: "file"},
		"./a:b":           {path: "./a:b"},
		"web:/tmp":        {name: "web", path: "/tmp"},
		"debian@web:":     {user: "debian", name: "web"},
		"a@b@web:dir/x:y": {user: "a@b", name: "web", path: "dir/x:y"},
		"/etc/x:y":        {path: "/etc/x:y"},
	} {
		got, err := parseCopyEnd(text)
		assert.True(t, err == nil && got == want, "%q is %+v, %v, want %+v", text, got, err, want)
	}
	for _, text := range []string{":/tmp", "@web:/tmp", "-oProxyCommand=x@web:/tmp", "debian@:/tmp"} {
		got, err := parseCopyEnd(text)
		assert.True(t, err != nil, "%q is accepted as %+v", text, got)
	}
}
