// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package catalogue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/image/catalogue"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestShipped checks that the shipped catalogue is valid, and has the images that the docs name.
func TestShipped(t *testing.T) {
	t.Parallel()
	c := catalogue.Shipped()
	for name, user := range map[string]string{
		"almalinux/9": "almalinux", "alpine/3.22": "alpine", "debian/12": "debian", "debian/13": "debian", "fedora/44": "fedora",
		"opensuse-leap/16.0": "opensuse", "rockylinux/9": "rocky", "ubuntu/22.04": "ubuntu", "ubuntu/24.04": "ubuntu",
	} {
		i, err := c.Find(name, "amd64")
		assert.NoError(t, err)
		assert.True(t, i.User == user && i.MinDiskBytes() >= 256<<20 && i.File() != "", "%s is %+v", name, i)
	}
	_, err := c.Find("none", "amd64")
	_, names, _ := strings.Cut(fmt.Sprint(err), "the names are ")
	docs := framework.ReadFile(t, filepath.Join("..", "..", "..", "docs", "images.md"))
	for name := range strings.SplitSeq(names, ", ") {
		assert.True(t, strings.Contains(docs, "`"+name+"`"), "docs/images.md does not have %s", name)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ name, architecture, says string }{
		"there":                {"debian/13", "amd64", ""},
		"unknown":              {"debian/99", "amd64", "there is no image of that name: the names are almalinux/9, alpine/3.22, debian/12, debian/13, "},
		"empty":                {"", "amd64", "there is no image of that name"},
		"another architecture": {"debian/13", "arm64", "the image is for amd64, and machines here are arm64"},
	} {
		assert.ErrorSays(t, name, assert.ErrorOf(catalogue.Shipped().Find(c.name, c.architecture)), c.says)
	}
}

// entry is a file with an image.
const entry = `images:
- name: house/1
  architecture: amd64
  url: https://images.example/house.img.xz
  checksums: {url: "https://images.example/SHA256SUMS", algorithm: sha256, format: coreutils}
  user: house
  minDisk: 1Gi
`

func write(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "images.yaml")
	assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// TestOpen checks that a file adds images, and replaces those of the same name and architecture.
func TestOpen(t *testing.T) {
	t.Parallel()
	c, err := catalogue.Open(write(t, entry+strings.Replace(strings.ReplaceAll(entry, "house", "debian"), "images:\n- name: debian/1\n", "- name: debian/13\n", 1)))
	assert.NoError(t, err)
	for name, user := range map[string]string{"house/1": "house", "debian/13": "debian", "debian/12": "debian"} {
		i, err := c.Find(name, "amd64")
		assert.NoError(t, err)
		assert.True(t, i.User == user && strings.HasPrefix(i.URL, "https://images.example/") == (name != "debian/12"), "%s is %+v", name, i)
	}
	c, err = catalogue.Open("")
	assert.True(t, err == nil && c == catalogue.Shipped(), "without a file it is %v, %v", c, err)
}

// TestOpenRefuses checks that errors of a file name it, the image and the field.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	const where = "images[0] (house/1): "
	replaced := func(old, with string) string { return strings.Replace(entry, old, with, 1) }
	for name, c := range map[string]struct{ content, says string }{
		"no YAML":             {"images: [", "yaml"},
		"nothing":             {"", "images has 0 entries: it must have 1 to 1000"},
		"too many":            {"images:\n" + strings.Repeat("- name: x\n", 1001), "images has 1001 entries"},
		"too large":           {"#" + strings.Repeat("x", 1<<20), "has more than 1048576 bytes"},
		"an unknown field":    {replaced("user:", "usr: x\n  user:"), where + `json: unknown field "usr"`},
		"no text":             {replaced("name: house/1", "name: 1"), "images[0] (without a name): json: cannot unmarshal number into Go struct field Image.name of type string"},
		"an unknown list":     {"image: []\n", `json: unknown field "image"`},
		"a field twice":       {replaced("user:", "user: x\n  user:"), `key "user" already set in map`},
		"name":                {replaced("house/1", "House 1"), `images[0] (House 1): name is "House 1": it must be up to 100 lowercase letters`},
		"a long name":         {replaced("house/1", strings.Repeat("x", 101)), "name is"},
		"no name":             {replaced("name: house/1", "name: ''"), "images[0] (without a name): name is"},
		"architecture":        {replaced("amd64", "x86_64"), where + `architecture is "x86_64": it must be amd64 or arm64`},
		"url by http":         {replaced("https://images.example/house", "http://images.example/house"), where + `url is "http://images.example/house.img.xz": it must be the https:// address of a file`},
		"url with a user":     {replaced("https://images.example/house", "https://u:p@images.example/house"), where + "url is"},
		"url with a query":    {replaced("house.img.xz", "house.img.xz?a"), where + "url is"},
		"url of a folder":     {replaced("house.img.xz", "house/"), where + "url is"},
		"checksums.url":       {replaced("https://images.example/SHA256SUMS", "SHA256SUMS"), where + `checksums.url is "SHA256SUMS": it must be the https:// address`},
		"checksums.algorithm": {replaced("sha256,", "md5,"), where + `checksums.algorithm is "md5": it must be sha256 or sha512`},
		"checksums.format":    {replaced("coreutils", "gnu"), where + `checksums.format is "gnu": it must be coreutils, bsd or digest`},
		"user":                {replaced("user: house", "user: -lroot"), where + `user is "-lroot": it must be the name of a user`},
		"minDisk":             {replaced("1Gi", "big"), where + `minDisk is "big": it must be a quantity above 0, such as 3Gi`},
		"minDisk of nothing":  {replaced("1Gi", "'0'"), where + "minDisk is"},
		"a name twice":        {entry + strings.TrimPrefix(entry, "images:\n"), "images[1] (house/1): there is one of that name for amd64 before it"},
	} {
		path := write(t, c.content)
		err := assert.ErrorOf(catalogue.Open(path))
		assert.ErrorSays(t, name, err, c.says)
		assert.ErrorSays(t, name, err, path)
	}
	err := assert.ErrorOf(catalogue.Open(filepath.Join(t.TempDir(), "none")))
	assert.True(t, os.IsNotExist(err), "a file that is not there: %v", err)
}

const (
	good  = "47f2218668dd4776be140dd92fa3bea700be1766e2c7d88bdfd6a4b50f477b4d"
	other = "06e6305fcd5b7dc56c2937b6b127ca8e3c0d7ea8218b5a073d3cd7bf93211e37"
	file  = "disk.img"
)

// TestFindChecksum checks the forms in which publishers publish, and that nothing else counts.
func TestFindChecksum(t *testing.T) {
	t.Parallel()
	good512 := good + good
	for name, c := range map[string]struct {
		format, algorithm, document string
		want                        string // or what the error says
	}{
		"Debian's":          {"coreutils", "sha512", good512 + "  disk.img\n" + good512[1:] + "0  disk.json\n", good512},
		"Ubuntu's":          {"coreutils", "sha256", other + " *disk.img.txt\n" + good + " *disk.img\n", good},
		"AlmaLinux's":       {"coreutils", "sha256", good + "  disk-9.6.img\n" + good + "  disk.img\n", good},
		"Fedora's":          {"bsd", "sha256", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# disk.img: 1 bytes\nSHA256 (disk.img) = " + good + "\n-----BEGIN PGP SIGNATURE-----\n", good},
		"Rocky's":           {"bsd", "sha256", "# disk.img: 645988352 bytes\nSHA256 (disk.img) = " + strings.ToUpper(good) + "\n", good},
		"Alpine's":          {"digest", "sha512", good512, good512},
		"openSUSE's":        {"digest", "sha256", good + "  disk-Build1.2.img\n", good},
		"by Windows":        {"coreutils", "sha256", good + "  disk.img\r\n", good},
		"with a folder":     {"coreutils", "sha256", good + "  ./disk.img\n", good},
		"twice the same":    {"bsd", "sha256", strings.Repeat("SHA256 (disk.img) = "+good+"\n", 2), good},
		"two algorithms":    {"bsd", "sha512", "SHA256 (disk.img) = " + good + "\nSHA512 (disk.img) = " + good512 + "\n", good512},
		"two of one file":   {"coreutils", "sha256", good + "  disk.img\n" + other + "  disk.img\n", "has two checksums of disk.img"},
		"two, of any file":  {"digest", "sha256", good + "  a\n" + other + "  b\n", "has two checksums of disk.img"},
		"another file":      {"coreutils", "sha256", good + "  other.img\n", "lacks the sha256 of disk.img"},
		"a file below":      {"coreutils", "sha256", good + "  x/disk.img\n", "lacks the sha256 of disk.img"},
		"another algorithm": {"coreutils", "sha512", good + "  disk.img\n", "lacks the sha512 of disk.img"},
		"as another":        {"bsd", "sha256", "MD5 (disk.img) = " + good + "\n", "lacks the sha256 of disk.img"},
		"no digits":         {"coreutils", "sha256", strings.Repeat("x", 64) + "  disk.img\n", "lacks the sha256 of disk.img"},
		"a page":            {"digest", "sha256", "<html>404</html>", "lacks the sha256 of disk.img"},
		"nothing":           {"digest", "sha256", "", "lacks the sha256 of disk.img"},
	} {
		sums := catalogue.Checksums{URL: "https://images.example/SUMS", Algorithm: c.algorithm, Format: c.format}
		got, err := sums.Find([]byte(c.document), file)
		assert.True(t, got == c.want || (err != nil && strings.Contains(err.Error(), "https://images.example/SUMS "+c.want)),
			"%s: got %q, error %v, want %q", name, got, err, c.want)
	}
}

// FuzzFindChecksum checks that a checksum has the digits of its algorithm, whatever a server sends, and that
// errors have none of its words.
func FuzzFindChecksum(f *testing.F) {
	f.Add("coreutils", "sha256", good+"  disk.img\n")
	f.Add("bsd", "sha512", "SHA512 (disk.img) = "+good+good)
	f.Add("digest", "sha256", good)
	f.Fuzz(func(t *testing.T, format, algorithm, document string) {
		sums := catalogue.Checksums{URL: "https://images.example/SUMS", Algorithm: algorithm, Format: format}
		digest, err := sums.Find([]byte(document), file)
		switch fixed := fmt.Sprintf("%s has no %s of %s", sums.URL, algorithm, file); {
		case err == nil && (len(digest) != 2*sums.New().Size() || strings.Trim(digest, "0123456789abcdef") != ""):
			t.Errorf("%q has the checksum %q", document, digest)
		case err != nil && err.Error() != fixed && err.Error() != sums.URL+" has two checksums of "+file:
			t.Errorf("got the error %v", err)
		}
	})
}
