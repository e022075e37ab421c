// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"crypto/sha512"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
)

// publisher is a web server of a publisher, by TLS, with an image and its checksums, which may change.
type publisher struct {
	url string

	mu    sync.Mutex
	files map[string][]byte
	asked map[string]int
}

const diskFile, sumsFile = "/images/disk.img", "/images/SUMS"

func newPublisher(t *testing.T, content []byte, sums string) *publisher {
	t.Helper()
	p := &publisher{asked: map[string]int{}}
	server := httptest.NewTLSServer(p)
	t.Cleanup(server.Close)
	p.url = server.URL
	p.publish(content, sums)
	return p
}

// publish replaces the files, in which LINE is replaced by a line of sha512sum.
func (p *publisher) publish(content []byte, sums string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sums = strings.Replace(sums, "LINE", fmt.Sprintf("%x  disk.img\n", sha512.Sum512(content)), 1)
	p.files = map[string][]byte{diskFile: content, sumsFile: []byte(sums)}
}

// requests returns how many times a file was asked for.
func (p *publisher) requests(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[path]
}

// ServeHTTP implements http.Handler.
func (p *publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[r.URL.Path]++
	content, ok := p.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", `"1"`)
	_, _ = w.Write(content)
}

// policy allows the publisher, with a catalogue in which house/1 is its image.
func (p *publisher) policy(t *testing.T, algorithm, format string) image.Policy {
	t.Helper()
	path := filepath.Join(t.TempDir(), "images.yaml")
	assert.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `images:
- {name: house/1, architecture: amd64, url: %[1]q, checksums: {url: %[2]q, algorithm: %[3]s, format: %[4]s}, user: house, minDisk: 1Mi}
- {name: house/2, architecture: arm64, url: %[1]q, checksums: {url: %[2]q, algorithm: %[3]s, format: %[4]s}, user: house, minDisk: 1Mi}
`, p.url+diskFile, p.url+sumsFile, algorithm, format), 0o600))
	return image.Policy{Hosts: []string{"127.0.0.1"}, MaxSize: 4 << 20, Catalogue: path}
}

const house = "cloud://house/1"

// TestCloud checks that a name stands for the image that its publisher has published a checksum of, whatever
// the algorithm and the format, and that the store pins it by its sha256.
func TestCloud(t *testing.T) {
	t.Parallel()
	content, zipped := disk(), zip(t, disk())
	for name, c := range map[string]struct {
		sent                    []byte
		algorithm, format, sums string
	}{
		"sha512":     {content, "sha512", "coreutils", "00 other.img\nLINE"},
		"sha256":     {content, "sha256", "bsd", fmt.Sprintf("SHA256 (disk.img) = %s\n", strings.TrimPrefix(checksum(content), "sha256:"))},
		"digest":     {content, "sha256", "digest", strings.TrimPrefix(checksum(content), "sha256:")},
		"compressed": {zipped, "sha512", "coreutils", "LINE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, c.sent, c.sums)
			s := newStore(t)
			allow(t, s, p.policy(t, c.algorithm, c.format))
			ref := image.ParseRef(house, "")
			assert.True(t, !s.Sources.IsUnchecked(ref) && ref.Source.IsFetched() && ref.Source.String() == house,
				"it counts as unchecked: %v, as remote: %v, and is shown as %s", s.Sources.IsUnchecked(ref), ref.Source.IsFetched(), ref.Source)
			assert.NoError(t, fetch(t, s, ref))
			checkStored(t, s, ref, content)
			assert.Equal(t, "its digest", s.Digest(ref), checksum(c.sent))
			all, err := s.List()
			assert.NoError(t, err)
			assert.True(t, len(all) == 1 && len(all[0].Sources) == 1 && all[0].Sources[0] == house, "the store has %+v", all)
			assert.NoError(t, fetch(t, s, image.ParseRef(house, checksum(c.sent))))
			assert.NoError(t, fetch(t, s, ref))
			n := p.requests(diskFile) + p.requests(sumsFile)
			assert.True(t, n == 2, "the publisher was asked %d times, want 2", n)
		})
	}
}

// TestCloudFails checks that an image without the right checksum is refused, that nothing is left, and
// that the image is not asked for where its checksum shows that it is not wanted.
func TestCloudFails(t *testing.T) {
	t.Parallel()
	const neverPulled = "never pulled"
	content := disk()
	sum := strings.TrimPrefix(checksum(content), "sha256:")
	for name, c := range map[string]struct {
		ref                     image.Ref
		algorithm, format, sums string
		says                    string
		asks                    int // for the image
	}{
		"another checksum":      {image.ParseRef(house, ""), "sha256", "digest", strings.Repeat("0", 64), "the sha256 of the image is " + sum + ", and URL/images/SUMS states 0000", 1},
		"another sha512":        {image.ParseRef(house, ""), "sha512", "digest", strings.Repeat("0", 128), "the sha512 of the image is ", 1},
		"no line":               {image.ParseRef(house, ""), "sha512", "coreutils", "nothing", "its checksum: URL/images/SUMS lacks the sha512 of disk.img", 0},
		"endless checksums":     {image.ParseRef(house, ""), "sha512", "coreutils", strings.Repeat("x", 2<<20), "fetching its checksum from URL/images/SUMS: the server's answer has more than 1048576 bytes", 0},
		"checksums of nothing":  {image.ParseRef(house, ""), "sha512", "coreutils", "", "fetching its checksum from URL/images/SUMS: the server answered 404 Not Found", 0},
		"not the one wanted":    {image.ParseRef(house, checksum(nil)), "sha256", "digest", sum, "leads to the image with checksum " + checksum(content) + " now, and " + checksum(nil) + " is requested", 0},
		"not the one of sha512": {image.ParseRef(house, checksum(nil)), "sha512", "coreutils", "LINE", "its checksum is " + checksum(content) + ", and " + checksum(nil) + " was asked for", 1},
		neverPulled:             {image.ParseRef(house, ""), "sha512", "coreutils", "LINE", "its pullPolicy is Never", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, content, c.sums)
			if c.sums == "" {
				delete(p.files, sumsFile)
			}
			s := newStore(t)
			allow(t, s, p.policy(t, c.algorithm, c.format))
			policy := image.PullIfNotPresent
			if name == neverPulled {
				policy = image.PullNever
			}
			err := fetchBy(t, s, c.ref, policy)
			wantRetry(t, err, strings.Replace(c.says, "URL", p.url, 1))
			wantRetry(t, err, "image "+house)
			checkImages(t, s, 0)
			got := p.requests(diskFile)
			assert.True(t, got == c.asks, "the image was asked for %d times, want %d", got, c.asks)
		})
	}
}

// TestCloudIsPublishedAnew checks that an image that did not match is fetched again once another checksum
// is published, and not before, and that PullAlways finds the new image of a name.
func TestCloudIsPublishedAnew(t *testing.T) {
	t.Parallel()
	first := disk()
	p := newPublisher(t, first, strings.Repeat("0", 128)+"  disk.img")
	s := newStore(t)
	allow(t, s, p.policy(t, "sha512", "coreutils"))
	ref := image.ParseRef(house, "")
	for range 2 {
		wantRetry(t, fetchBy(t, s, ref, image.PullAlways), "the sha512 of the image is ")
	}
	wantRetry(t, fetchBy(t, s, ref, image.PullAlways), "the content on the server has not changed")
	p.publish(first, "LINE")
	assert.NoError(t, fetchBy(t, s, ref, image.PullAlways))
	checkStored(t, s, ref, first)
	second := append(disk(), make([]byte, 512)...)
	p.publish(second, "LINE")
	assert.NoError(t, fetch(t, s, image.ParseRef(house, ""))) // IfNotPresent
	checkStored(t, s, ref, first)
	assert.NoError(t, fetchBy(t, s, ref, image.PullAlways))
	checkStored(t, s, ref, second)
	checkStored(t, s, image.ParseRef(house, checksum(first)), first) // which disks stand on
}

// TestCloudNames checks which names are known.
func TestCloudNames(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, disk(), "LINE")
	policy := p.policy(t, "sha512", "coreutils")
	s := newStore(t)
	allow(t, s, policy)
	for text, message := range map[string]string{
		house:                       "",
		"cloud://debian/13":         "",
		"https://images.example/":   "",
		"cloud://house/2":           "the image is for arm64, and machines here are amd64",
		"cloud://house/3":           "there is no image of that name: the names are almalinux/9, ",
		"cloud://":                  "there is no image of that name",
		"cloud://debian/13?secret":  "there is no image of that name",
		"cloud://house/1/../../etc": "there is no image of that name",
	} {
		ref := image.ParseRef(text, "")
		found, err := s.Sources.FindCloud(ref.Source)
		assert.ErrorSays(t, text, err, message)
		if message != "" {
			assert.ErrorIs(t, text, fetch(t, s, ref), image.ErrInvalid, message)
		}
		assert.True(t, (found != nil) == (message == "" && strings.HasPrefix(text, "cloud://")), "%s is %+v", text, found)
	}
	policy.Catalogue = filepath.Join(t.TempDir(), "none")
	assert.ErrorSays(t, "no file", assert.ErrorOf(image.NewSources(policy)), "--image-catalogue: open "+policy.Catalogue)
}

// TestCloudAddresses checks that names are fetched by the rules for addresses.
func TestCloudAddresses(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, disk(), "LINE")
	policy := p.policy(t, "sha512", "coreutils")
	policy.Hosts = nil
	s := newStore(t)
	allow(t, s, policy)
	wantRetry(t, fetch(t, s, image.ParseRef(house, "")), "fetching its checksum from "+p.url+sumsFile+": 127.0.0.1 resolves to a loopback address, which is contacted only if --image-hosts has")
	n := p.requests(sumsFile)
	assert.True(t, n == 0, "the publisher was asked %d times", n)
}
