// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// folder is a staging folder.
type folder string

func (f folder) Temp() (path string, remove func(), err error) {
	path, err = os.MkdirTemp(string(f), "")
	return path, func() { _ = os.RemoveAll(path) }, err
}

func (f folder) ReplaceVolatile(path string, content []byte) error {
	return os.WriteFile(path, content, 0o600)
}

// wantError checks kind and text of an error.
func wantError(t *testing.T, err, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got the error %v, want the kind %q", err, kind)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got the error %q, want %q in it", err, text)
		}
	}
}

// script returns a program in place of QEMU.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(framework.PublicDir(t), "qemu")
	assert.NoError(t, framework.WriteProgram(path, []byte("#!/bin/sh\n"+body+"\n")))
	return path
}

// asks are the cases of a script that stands in for QEMU when it is queried about itself.
const asks = "--version) echo version 7.2;; -machine) echo 'q35  PC (alias of pc-q35-7.2)';" +
	" echo 'pc-q35-7.2  PC'; echo 'pc-q35-6.2  PC (deprecated)';;"
