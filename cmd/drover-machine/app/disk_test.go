// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// bootLinux makes the host's machine one of the Linux guest, and returns the port of this host
// that leads to its web server.
func (h *host) bootLinux(t *testing.T) int32 {
	t.Helper()
	guest := framework.BuildLinuxGuest(t, h.dir)
	port := framework.FreePort(t)
	h.described.MemoryBytes = 256 << 20
	h.described.Kernel = &description.Kernel{File: guest.Kernel, Initrd: guest.Initrd, Cmdline: framework.GuestCmdline}
	h.described.Forwards = []description.Forward{{Port: 80, HostPort: port}}
	return port
}

// guestDisk is a disk as the Linux guest has it.
type guestDisk struct {
	Size     int64
	Serial   string
	ReadOnly bool
}

// wantDisks compares the disks of the Linux guest that serves at an address, once it does.
func wantDisks(t *testing.T, address string, want ...guestDisk) {
	t.Helper()
	assert.Eventually(t, "the guest has its disks", func(t testing.TB) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		var r struct{ Disks map[string]guestDisk }
		if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
			return err
		}
		for _, d := range want {
			if !slices.Contains(slices.Collect(maps.Values(r.Disks)), d) {
				return fmt.Errorf("they are %+v, without %+v", r.Disks, d)
			}
		}
		return nil
	})
}

// newFolder makes a folder of a disk.
func (h *host) newFolder(t *testing.T, name string) string {
	t.Helper()
	folder := filepath.Join(h.dir, name)
	assert.NoError(t, os.Mkdir(folder, 0o700))
	return folder
}

// TestLinux checks, with two boots of one guest, what needs a kernel and a network: volumes, which
// are copied or made blank once, have names that the guest finds, and grow; probes, of its first run;
// and the control from another host, of its second.
func TestLinux(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	port := h.bootLinux(t)
	image := filepath.Join(h.dir, "image")
	assert.NoError(t, os.WriteFile(image, append(make([]byte, 1<<20), "content"...), 0o600))
	framework.RunQEMUImg(t, "convert", "-f", "raw", "-O", "qcow2", image, image+".qcow2")
	h.described.Volumes = []description.Volume{
		{Name: "blank", Disk: description.Disk{Folder: h.newFolder(t, "blank"), SizeBytes: 1 << 20}},
		{Name: "copy", Disk: description.Disk{Folder: h.newFolder(t, "copy"), Image: h.image, SizeBytes: 2 << 20}},
		{Name: "fixed", Disk: description.Disk{Folder: h.newFolder(t, "fixed"), Image: image + ".qcow2", SizeBytes: 8 << 20}, ReadOnly: true},
	}
	fixed := guestDisk{1<<20 + 512, "fixed", true}
	g := h.start(t)
	g.checkProbesOfStart(t)
	wantDisks(t, fmt.Sprintf("127.0.0.1:%d", port), guestDisk{1 << 20, "blank", false}, guestDisk{2 << 20, "copy", false}, fixed)
	g.checkProbes(t)
	g.shutDown(t)

	h.described.Volumes[0].SizeBytes, h.described.Volumes[1].SizeBytes = 3<<20, 4<<20
	assert.NoError(t, errors.Join(os.Remove(h.image), os.Remove(image+".qcow2")))
	n := newNetwork(t)
	g, c := h.startControlled(t, n)
	wantDisks(t, fmt.Sprintf("%s:%d", n.address, port), guestDisk{3 << 20, "blank", false}, guestDisk{4 << 20, "copy", false}, fixed)
	g.checkControl(t, n, c)
}

// TestVolumeNotMade checks that a volume without its image, or with a damaged record, is named,
// and that nothing is left of it.
func TestVolumeNotMade(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	folder := h.newFolder(t, "data")
	h.described.Volumes = []description.Volume{{Name: "data", Disk: description.Disk{Folder: folder, Image: filepath.Join(h.dir, "none")}}}
	g := h.wantNotStarted(t, "volume data: making the disk")
	got := g.readEnd(t).Disks
	assert.True(t, got.Root && len(got.Volumes) == 0, "it says of its disks %+v, want the root disk, which it has made", got)
	left, err := os.ReadDir(folder)
	assert.True(t, err == nil && len(left) == 0, "it has left %v, %v", left, err)
	h.described.Volumes[0].Image, h.described.Volumes[0].SizeBytes = h.image, 512
	if got := h.wantNotStarted(t, "and this disk may have 512").readEnd(t).TooLarge; got == nil || got.Volume != "data" || got.Bytes <= 512 {
		t.Errorf("of an image that is larger than its disk it says %+v", got)
	}
	assert.NoError(t, os.MkdirAll(filepath.Join(folder, volumeName), 0o700))
	h.wantNotStarted(t, "volume data: the record of the disk cannot be read: repair "+filepath.Join(folder, volumeName))
}

// imageServer serves an image, and whatever a test wants to be refused.
func imageServer(t *testing.T, image string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/disk", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, image) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/disk", http.StatusFound) })
	mux.HandleFunc("/local", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
	})
	mux.HandleFunc("/metadata", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/hunter2", http.StatusFound)
	})
	mux.HandleFunc("/refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hunter2", http.StatusForbidden) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("hunter2"))
	})
	mux.HandleFunc("/halted", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush() // so that no length is sent
		_, _ = w.Write([]byte("<html>hunter2"))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func checksumOf(content string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
}

// TestFetchedDisk checks that an image by URL is fetched once, and for an ephemeral machine at
// each start.
func TestFetchedDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		isEphemeral bool
		second      string
	}{"kept": {false, "drover guest 2 A"}, "ephemeral": {true, "drover guest 1 A"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, false)
			s := imageServer(t, h.image)
			h.described.RootDisk.Image, h.described.RootDisk.Checksum = s.URL+"/moved?token=hunter2", checksumOf(framework.ReadFile(t, h.image))
			h.described.RootDisk.Ephemeral = c.isEphemeral
			for _, banner := range []string{"drover guest 1 A", c.second} {
				g := h.begin(t, banner)
				g.wantResident(t)
				g.shutDown(t)
				if log := g.errors.String(); strings.Contains(log, "hunter2") {
					t.Errorf("the log has a secret: %s", log)
				}
				if !c.isEphemeral {
					s.Close()
				}
			}
		})
	}
}

// TestChecksumOfFile checks that an image that is a file is compared with a checksum before a guest
// boots from it, and that the disk of an ephemeral machine is a copy then.
func TestChecksumOfFile(t *testing.T) {
	t.Parallel()
	for name, isEphemeral := range map[string]bool{"kept": false, "ephemeral": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, false)
			h.described.RootDisk.Ephemeral, h.described.RootDisk.Checksum = isEphemeral, checksumOf("")
			h.wantNotStarted(t, "its checksum is "+checksumOf(framework.ReadFile(t, h.image)))
			h.described.RootDisk.Checksum = checksumOf(framework.ReadFile(t, h.image))
			h.begin(t, "drover guest 1 A").shutDown(t)
		})
	}
}

// TestMustExist checks that no disk is made in the place of one that an earlier run has made, and that one
// which is there is used without its image.
func TestMustExist(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	image := h.described.RootDisk.Image
	h.described.RootDisk.MustExist, h.described.RootDisk.Image = true, ""
	h.wantNotStarted(t, "was made by an earlier run, and is missing")
	left, err := os.ReadDir(h.described.RootDisk.Folder)
	assert.True(t, err == nil && len(left) == 0, "it has left %v, %v", left, err)
	for _, c := range []struct {
		mustExist     bool
		image, banner string
	}{{false, image, "drover guest 1 A"}, {true, "", "drover guest 2 A"}} {
		h.described.RootDisk.MustExist, h.described.RootDisk.Image = c.mustExist, c.image
		h.begin(t, c.banner).shutDown(t)
	}
}

// TestTLS checks that an image by https:// comes from a server that this host trusts alone.
func TestTLS(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, h.image) }))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.described.RootDisk.Image, h.described.RootDisk.Checksum = s.URL, checksumOf(framework.ReadFile(t, h.image))
	h.wantNotStarted(t, "TLS: the certificate was not issued by an authority that this host trusts")
	authority := filepath.Join(h.dir, "authority")
	assert.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	g := h.start(t)
	g.Env = append(os.Environ(), "SSL_CERT_FILE="+authority)
	g.launch(t)
	g.waitFor(t, "drover guest 1 A")
	g.shutDown(t)
}

// TestRefusedImages checks what is not taken as an image, and that errors have neither secrets
// nor words of the server.
func TestRefusedImages(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	s := imageServer(t, h.image)
	right := checksumOf(framework.ReadFile(t, h.image))
	for name, c := range map[string]struct {
		path, checksum, says string
		most                 int64
	}{
		"checksum":     {"/disk", checksumOf(""), "its checksum is " + right + ", and " + checksumOf("") + " was asked for", 0},
		"size":         {"/disk", right, "it has 1048576 bytes: imageMaxBytes allows 1000", 1000},
		"not found":    {"/none", right, "the server answered 404 Not Found", 0},
		"refused":      {"/refused", right, "the server answered 403 Forbidden", 0},
		"cut off":      {"/cut", right, "the content was cut off", 0},
		"no image":     {"/page", checksumOf("<html>hunter2"), "copying image http://", 0},
		"file":         {"/local", right, "the URL is neither http:// nor https://", 0},
		"metadata":     {"/metadata", right, "which is never contacted", 0},
		"unknown size": {"/page", right, "it has more than 5 bytes", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := *h
			disk := description.Disk{Folder: t.TempDir(), Image: strings.Replace(s.URL, "http://", "http://u:hunter2@", 1) + c.path + "?hunter2", Checksum: c.checksum}
			h.described.RootDisk, h.described.ImageMaxBytes = &description.RootDisk{Disk: disk}, c.most
			g := h.wantNotStarted(t, c.says)
			text := g.errors.String() + framework.ReadFile(t, filepath.Join(g.run, "ended"))
			assert.True(t, !strings.Contains(text, "hunter2"), "it says %s", text)
			left, err := os.ReadDir(disk.Folder)
			assert.True(t, err == nil && len(left) == 0, "it has left %v, %v", left, err)
		})
	}
}

// TestStalledFetch checks that a server that sends nothing any more is given up.
func TestStalledFetch(t *testing.T) {
	t.Parallel()
	image := filepath.Join(t.TempDir(), "image")
	r := newRun(description.Machine{ImageMaxBytes: 1}, options{}, logr.Discard())
	r.stallWithin = 50 * time.Millisecond
	assert.ErrorSays(t, "the fetch", assert.ErrorOf(r.copyImageTo(t.Context(), &description.Disk{Image: imageServer(t, image).URL + "/halted"}, image)), "has sent no data for 50ms")
}

// TestCompressedImage checks that an image is decompressed as it is fetched, that its checksum is compared
// with the bytes as sent, and that its size is bounded.
func TestCompressedImage(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("drover! "), 1<<17)
	copy(content[510:], "\x55\xaa")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	sent := zipped.String()
	for name, c := range map[string]struct {
		sent, checksum, says string
		most                 int64
	}{
		"taken":            {sent, checksumOf(sent), "", 1 << 20},
		"another checksum": {sent, checksumOf(string(content)), "its checksum is " + checksumOf(sent), 1 << 20},
		"too large":        {sent, checksumOf(sent), "decompressed, it has more than 1048575 bytes, the limit of imageMaxBytes", 1<<20 - 1},
		"cut off":          {sent[:len(sent)-1], checksumOf(sent), "the content is compressed by gzip, and damaged or cut off", 1 << 20},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.sent) }))
		t.Cleanup(s.Close)
		path := filepath.Join(t.TempDir(), "disk")
		r := newRun(description.Machine{ImageMaxBytes: c.most}, options{}, logr.Discard())
		r.stallWithin = time.Hour
		format, err := r.copyImageTo(t.Context(), &description.Disk{Image: s.URL, Checksum: c.checksum}, path)
		assert.ErrorSays(t, name, err, c.says)
		assert.True(t, c.says != "" || (format == "raw" && framework.ReadFile(t, path) == string(content)),
			"%s: the disk is not the image, and its format is %q", name, format)
	}
}
