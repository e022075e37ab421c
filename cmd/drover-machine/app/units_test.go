// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/edge"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestSeed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{"user-data": "#cloud-config\n", "ssh-keys": "ssh-ed25519 A a\n\nssh-ed25519 B b\n"} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	r := &run{description: description.Machine{UUID: "u", Name: "web", CloudInit: folder}}
	seed, err := r.readSeed()
	assert.True(t, err == nil && seed.UserData == "#cloud-config\n" && seed.NetworkData == "" && len(seed.SSHKeys) == 2 && seed.SSHKeys[1] == "ssh-ed25519 B b",
		"got %+v, %v", seed, err)
	assert.NoError(t, os.WriteFile(filepath.Join(folder, "network-data"), make([]byte, description.MaxFile+1), 0o600))
	assert.ErrorSays(t, "a large file", assert.ErrorOf(r.readSeed()), "network-data has more than")
}

// TestNodeAddresses checks that a guest may not connect to its node, and that the program refuses what it cannot parse.
func TestNodeAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "192.0.2.1": "[192.0.2.1/32]", "192.0.2.1,2001:db8::1,::ffff:192.0.2.2": "[192.0.2.1/32 2001:db8::1/128 192.0.2.2/32]",
	} {
		t.Setenv(description.NodeAddresses, text)
		o, err := parseOptions(nil)
		assert.NoError(t, err)
		network, err := newRun(description.Machine{UUID: "9a4d9b1c-0c3f-4b8e-8f5c-0b8f6f0a5f11", MAC: "52:54:00:12:34:56"}, o, logr.Discard()).openNetwork(t.Context())
		assert.NoError(t, err)
		if got := fmt.Sprint(network.(*edge.Edge).Wanted.Egress.Denied[:len(o.nodeAddresses)]); got != want { // before gateways
			t.Errorf("of %q %s are denied, want %s", text, got, want)
		}
	}
	for _, text := range []string{"node", "192.0.2.1,", "192.0.2.1, 192.0.2.2", "192.0.2.0/24", "fe80::1%eth0", ","} {
		t.Setenv(description.NodeAddresses, text)
		assert.ErrorSays(t, text, assert.ErrorOf(parseOptions(nil)), "DROVER_NODE_ADDRESSES is")
	}
}

// TestGatewaysOf checks that routes through a network alone lack a gateway.
func TestGatewaysOf(t *testing.T) {
	t.Parallel()
	const routes = "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0101A8C0\t0003\neth0\t0001A8C0\t0201A8C0\t0003\neth1\t00000000\t00000000\t0001\n"
	got := fmt.Sprint(gatewaysOf(routes))
	assert.True(t, got == "[192.168.1.1/32]", "got %s", got)
}

// TestImageSize checks that a disk, copied or on top of its image, is never made from an image that is larger than
// it may be, and that nothing of such a file is copied.
func TestImageSize(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	image := filepath.Join(t.TempDir(), "image")
	assert.NoError(t, diskimage.CreateQcow2(image, size, nil))
	sum := sha256.Sum256([]byte(framework.ReadFile(t, image)))
	for name, c := range map[string]struct {
		disk      description.Disk
		isRefused bool
	}{
		"as large":                {description.Disk{SizeBytes: size}, false},
		"larger":                  {description.Disk{SizeBytes: size - 512}, true},
		"larger, with a checksum": {description.Disk{SizeBytes: size - 512, Checksum: "sha256:" + hex.EncodeToString(sum[:])}, true},
		"any size":                {description.Disk{}, false},
		"as large as there is":    {description.Disk{MaxBytes: size}, false},
		"larger than there is":    {description.Disk{MaxBytes: size - 512}, true},
	} {
		c.disk.Image, c.disk.Folder = image, t.TempDir()
		path := filepath.Join(c.disk.Folder, "copy")
		_, copied := (&run{}).copyImageTo(t.Context(), &c.disk, path)
		files := &launch.Files{}
		_, stacked := openOverlay(&c.disk, files)
		files.Close()
		for _, err := range []error{copied, stacked} {
			tooLarge, isRefused := errors.AsType[*imageSizeError](err)
			assert.True(t, isRefused == c.isRefused && (!isRefused || tooLarge.Bytes == size) && (isRefused || err == nil), "%s: %v", name, err)
		}
		assert.True(t, !c.isRefused || c.disk.Checksum != "" || framework.ReadFile(t, path) == "", "%s: the image was copied", name)
	}
}

// blockedWriter takes nothing until it is opened.
type blockedWriter struct {
	opened chan struct{}
	bytes.Buffer
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	<-w.opened
	return w.Buffer.Write(p)
}

// TestSlowReader checks that a guest does not wait for who reads its console.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	from, guest := io.Pipe()
	to := &blockedWriter{opened: make(chan struct{})}
	o := newOutputBuffer(to)
	go o.copyFrom(from)
	printed := bytes.Repeat([]byte("0123456789abcdef"), 4*maxUnread/16)
	if _, err := guest.Write(printed); err != nil { // a pipe of package io takes nothing that is not read
		t.Fatal(err)
	}
	close(to.opened)
	assert.NoError(t, guest.Close())
	<-o.done
	got := to.String()
	const last = 4 << 10 // may come once there is room again
	assert.True(t, strings.HasPrefix(got, "0123456789abcdef") && strings.Contains(got, "bytes were not read in time") && len(got) <= 2*maxUnread+last+200,
		"%d of %d bytes were read: %.100q", len(got), len(printed), got[max(0, len(got)-200):])
}

func TestTerminationMessage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ended")
	assert.NoError(t, (end{Reason: "Killed", Message: strings.Repeat("é", maxMessage)}).writeMessage(path))
	if got := framework.ReadFile(t, path); len(got) > 4096 || !strings.HasPrefix(got, `{"reason":"Killed","message":"éé`) || !strings.HasSuffix(got, `é"}`) {
		t.Errorf("%d bytes: %.40q", len(got), got)
	}
}
