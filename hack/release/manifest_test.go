// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParseSources(t *testing.T) {
	for text, want := range map[string][]Source{
		"linux 6.1.192-3, ": {{"linux", "6.1.192-3"}},
		"busybox (1:1.35.0-4+deb12u1), glibc (= 2.36-9+deb12u14)": {{"busybox", "1:1.35.0-4+deb12u1"}, {"glibc", "2.36-9+deb12u14"}},
		"": nil,
	} {
		got, err := parseSources(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"linux", "linux 6.1; rm", "Linux (= 6)", "a (>= 1)"} {
		if got, err := parseSources(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// TestManifest checks that a manifest has all packages, and that a release with others is refused by name.
func TestManifest(t *testing.T) {
	stage := writeStage(t)
	o := options{checkout: stage, stage: stage}
	noError(t, writeManifest(t.Context(), o))
	m, err := readManifest(stage)
	noError(t, err)
	if m.Version != "1.2.3" || m.Commit != "1234abcd" || len(m.Packages) != 3 || m.Time == 0 {
		t.Errorf("the manifest is %+v", m)
	}
	if got, want := builtUsing(m), "busybox (= 1:1.35), glibc (= 2.36), linux (= 6.1-1)"; got != want {
		t.Errorf("the package was built using %q, want %q", got, want)
	}

	o.expected = filepath.Join(t.TempDir(), "manifest.json")
	writeJSON(t, o.expected, m)
	noError(t, writeManifest(t.Context(), o))
	m.Packages[0].Version = "0.9"
	m.Packages = m.Packages[:2]
	writeJSON(t, o.expected, m)
	err = writeManifest(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "package busybox-static in built-in image is") || !strings.Contains(err.Error(), "0.9") ||
		!strings.Contains(err.Error(), "package qemu in image of drover-machine") || strings.Contains(err.Error(), "linux-image") {
		t.Errorf("with other packages, the error is %v", err)
	}
}

// writeStage returns a folder with the descriptions of the Debian packages in a release.
func writeStage(t *testing.T) string {
	t.Helper()
	stage := t.TempDir()
	noError(t, os.Mkdir(filepath.Join(stage, "guest"), 0o700))
	for name, text := range map[string]string{
		"VERSION": "1.2.3\n", "commit": "1234abcd\n", "time": "",
		"guest/kernel.json": `{"package": "linux-image-6.1.0", "version": "6.1-1", "source": "linux 6.1-1", "packageSHA256": "a"}`,
		"guest/image.json":  `{"package": "busybox-static", "version": "1:1.35+b1", "source": "busybox (1:1.35)", "builtUsing": "glibc (= 2.36)", "packageSHA256": "b"}`,
		"machine-packages":  "qemu 1:7.2+b1 qemu 1:7.2 c\n",
	} {
		noError(t, os.WriteFile(filepath.Join(stage, name), []byte(text), 0o600))
	}
	return stage
}

func writeJSON(t *testing.T, path string, value any) {
	t.Helper()
	content, err := json.Marshal(value)
	noError(t, err)
	noError(t, os.WriteFile(path, content, 0o600))
}

// TestNotices checks that a notice of a package's folder, of one above it and of its module are included, each text once.
func TestNotices(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "third_party", "package")
	noError(t, os.MkdirAll(folder, 0o700))
	for name, text := range map[string]string{
		"LICENSE": "the licence", "license.go": "no notice", "third_party/COPYING.txt": "above", "third_party/package/NOTICE": "the licence\n",
	} {
		noError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	texts := map[string]map[string]bool{}
	noError(t, goPackage{"example.com/a v1", root, folder}.addNotices(texts))
	noError(t, goPackage{"example.com/b v1", root, root}.addNotices(texts))
	got := string(formatNotices(texts))
	if strings.Count(got, "the licence") != 1 || !strings.Contains(got, "example.com/a v1\nexample.com/b v1\n\nthe licence\n") || !strings.Contains(got, "above") || strings.Contains(got, "no notice") {
		t.Errorf("the notices are %s", got)
	}
}

func TestUnknownPart(t *testing.T) {
	if err := run(t.Context(), options{}, "rpm"); err == nil || !strings.Contains(err.Error(), "bom, deb, manifest, notices, sources") {
		t.Errorf("the error is %v", err)
	}
}
