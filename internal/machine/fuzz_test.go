// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
)

// FuzzSeed checks that cloud-init reads what was meant, whatever the texts hold: the meta-data
// is YAML, which parses back to the same values, and the documents of users are unchanged on
// the disk, on which there is nothing else.
func FuzzSeed(f *testing.F) {
	f.Add("uid-1", "vm", "ssh-ed25519 AAAA me@host", "ssh-rsa x", "#cloud-config\n", "version: 2\n")
	f.Add("u", "a.b", "key: \"with\", 'quotes' \\ # and \t", "- {a: b}\x00", "\xff\xfe", "")
	f.Add("u", "a", "\u0085\u2028\U0001f600\ufeff", "!!python/object x", "", "\r\n")
	f.Fuzz(func(t *testing.T, id, host, key1, key2, user, network string) {
		for _, text := range []string{id, host, key1, key2} {
			if !utf8.ValidString(text) {
				return // the API has none
			}
		}
		s := Seed{InstanceID: id, Hostname: host, SSHKeys: []string{key1, key2}, UserData: user, NetworkData: network}
		files, err := s.makeFiles()
		assert.NoError(t, err)
		s.checkMetaData(t, files["meta-data"])
		want := map[string]string{"meta-data": files["meta-data"], "user-data": user}
		if user == "" {
			want["user-data"] = noUserData
		}
		if network != "" {
			want["network-config"] = network
		}
		checkISO(t, files, want)
	})
}

// checkMetaData parses the document as cloud-init does. Its parser takes only what YAML calls
// printable, in a document and not in an escape.
func (s Seed) checkMetaData(t *testing.T, document string) {
	t.Helper()
	for _, r := range document {
		assert.Require(t, isPrintableInYAML(r), "%q has %U, which YAML does not allow", document, r)
	}
	var got struct {
		ID   string   `json:"instance-id"`
		Host string   `json:"local-hostname"`
		Keys []string `json:"public-keys"`
	}
	err := yaml.Unmarshal([]byte(document), &got)
	assert.Require(t, err == nil, "%q: %v", document, err)
	assert.True(t, got.ID == s.InstanceID && got.Host == s.Hostname && slices.Equal(got.Keys, s.SSHKeys), "%+v comes back as %+v from %q", s, got, document)
}

// isPrintableInYAML reports whether a YAML document may have a character: c-printable of
// YAML 1.1, without the byte order mark.
func isPrintableInYAML(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == '\r', r == 0x85:
		return true
	case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0xd800 && r < 0xe000, r == 0xfeff, r == 0xfffe, r == 0xffff:
		return false
	}
	return true
}

// checkISO checks that a disk of the files has these, and no other.
func checkISO(t *testing.T, files, want map[string]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), SeedFile)
	assert.NoError(t, writeISO(path, filepath.Join(t.TempDir(), "files"), files))
	got, err := readISO(path)
	assert.NoError(t, err)
	for name, content := range want {
		assert.Equal(t, name, got[name], content)
	}
	assert.True(t, len(got) == len(want), "the disk has %d files, want %d", len(got), len(want))
}

func readISO(path string) (map[string]string, error) {
	disk, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = disk.Close() }()
	info, err := disk.Stat()
	if err != nil {
		return nil, err
	}
	iso, err := iso9660.Read(file.New(disk, true), info.Size(), 0, isoBlock)
	if err != nil {
		return nil, err
	}
	if label := strings.TrimRight(iso.Label(), " \x00"); label != seedLabel {
		return nil, fmt.Errorf("the label is %q", label)
	}
	entries, err := fs.ReadDir(iso, ".")
	if err != nil {
		return nil, err
	}
	content := map[string]string{}
	for _, e := range entries {
		opened, err := iso.OpenFile("/"+e.Name(), os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(opened)
		if err != nil {
			return nil, err
		}
		content[e.Name()] = string(text)
	}
	return content, nil
}
