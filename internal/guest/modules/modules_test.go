// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestFind checks names of each kind.
func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"modules.dep": "kernel/a-b.ko: kernel/c.ko kernel/d.ko\nkernel/c.ko: kernel/d.ko\nkernel/d.ko:\nkernel/e.ko:\nkernel/f.ko:\n",
		"modules.alias": "# comment\nalias char-major-10-229 e\nalias block-major-7-* f\nalias pci:v*d[0-9A-F]sc/* d\nalias pci:v*d[A-B]sc* e\n" +
			"alias net-pf-[1-3] f\n",
		"modules.symbols": "alias symbol:do_it e\n",
		"modules.softdep": "# comment\nsoftdep a_b pre: e in-kernel post: f\nsoftdep a_b pre: second-line\nsoftdep f before e\n",
	} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	for name, want := range map[string]string{
		"a-b": "kernel/d.ko kernel/c.ko kernel/e.ko kernel/a-b.ko kernel/f.ko", "a_b": "kernel/d.ko kernel/c.ko kernel/e.ko kernel/a-b.ko kernel/f.ko",
		"c": "kernel/d.ko kernel/c.ko", "char_major_10-229": "kernel/e.ko", "block-major-7-3": "kernel/f.ko", "block-major-70": "",
		"pci:v1dAsc/x/y": "kernel/d.ko kernel/e.ko", "pci:v1dG": "", "net-pf-2": "kernel/f.ko", "net-pf-4": "",
		"symbol:do_it": "kernel/e.ko", "symbol:do": "", "do_it": "", "": "", "[": "", "../e": "",
	} {
		got, err := Find(dir, name)
		assert.Equal(t, name, strings.Join(got, " "), want)
		assert.True(t, errors.Is(err, ErrNotFound) == (want == ""), "%q: %v", name, err)
	}
}

// TestModprobe checks that Find returns what modprobe of Debian's package kmod loads, for names and aliases of all modules of
// the guest's kernel, in the full tier for each of them.
func TestModprobe(t *testing.T) {
	t.Parallel()
	base, dir := copyDepmod(t)
	names := namesOf(t, dir)
	assert.True(t, len(names) > 3000, "there are %d names", len(names))
	step := 60
	if tier.IsFull() {
		step = 1
	}
	var running sync.WaitGroup
	limit := make(chan struct{}, 4)
	for i := 0; i < len(names); i += step {
		limit <- struct{}{}
		running.Go(func() {
			defer func() { <-limit }()
			got, err := Find(dir, names[i])
			want, wantErr := showDepends(t, base, names[i])
			assert.True(t, slices.Equal(got, want) && (err == nil) == (wantErr == nil), "%q: got %q, %v, want %q, %v", names[i], got, err, want, wantErr)
		})
	}
	running.Wait()
}

const release = "release"

// copyDepmod makes a folder with depmod's files of the guest's kernel in lib/modules/release, and with empty modules.
func copyDepmod(t *testing.T) (base, dir string) {
	t.Helper()
	out, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, "../../../hack/guest-kernel.sh")
	base = t.TempDir()
	dir = filepath.Join(base, "lib", "modules", release)
	assert.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(strings.TrimSpace(out), "depmod"))))
	for line := range strings.Lines(read(t, dir, "modules.dep")) {
		file, _, _ := strings.Cut(line, ":")
		file = filepath.Join(dir, file)
		assert.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)))
	}
	return base, dir
}

func read(t *testing.T, dir, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	assert.NoError(t, err)
	return string(text)
}

// namesOf returns the names of all modules and, for each alias, a name that has it.
func namesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	for line := range strings.Lines(read(t, dir, "modules.dep")) {
		file, _, _ := strings.Cut(line, ":")
		names = append(names, nameOf(file))
	}
	brackets := regexp.MustCompile(`\[(.)[^\]]*\]`)
	for line := range strings.Lines(read(t, dir, "modules.alias")) {
		if fields := strings.Fields(line); fields[0] == "alias" {
			names = append(names, strings.NewReplacer("*", "x/7", "?", "q").Replace(brackets.ReplaceAllString(fields[1], "$1")))
		}
	}
	return names
}

// showDepends returns the modules that modprobe would load.
func showDepends(t *testing.T, base, name string) (files []string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/sbin/modprobe", "--config=/dev/null", "--dirname="+base, "--set-version="+release, "--show-depends", name)
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		// "builtin md5" is a part of the kernel.
		if file, isModule := strings.CutPrefix(strings.TrimSpace(line), "insmod "+filepath.Join(base, "lib", "modules", release)+"/"); isModule && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files, err
}

// TestStripSignature checks that a signature is removed, and nothing else.
func TestStripSignature(t *testing.T) {
	t.Parallel()
	info := func(length byte) string {
		return "\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00" + string(length) + string(signatureMark)
	}
	for module, want := range map[string]string{
		"code": "code", "codesignature" + info(9): "code", "code" + info(99): "code" + info(99), string(signatureMark): string(signatureMark), "": "",
	} {
		got := StripSignature([]byte(module))
		assert.True(t, bytes.Equal(got, []byte(want)), "%q becomes %q, want %q", module, got, want)
	}
}
