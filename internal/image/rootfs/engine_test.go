// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"bytes"
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/filetree"
)

// unpackByEngine returns the tree to which Docker unpacks layers, without folders of which asExported knows nothing. The
// error is Docker's if it refuses a layer.
func unpackByEngine(t testing.TB, layers ...[]byte) (filetree.Tree, error) {
	t.Helper()
	exported, err := framework.ExportLayers(t, layers...)
	if err != nil {
		return nil, err
	}
	tree, err := filetree.ReadArchive(bytes.NewReader(exported))
	assert.NoError(t, err)
	return asExported(tree, layers...), nil
}

// asExported returns the part of a tree that a container engine's export shows: whole seconds from 1970 on, and of the
// extended attributes only capabilities. It leaves out what the engine adds to each container, and the attributes
// of folders that a layer has without an entry: an engine makes them as if they were new.
func asExported(tree filetree.Tree, layers ...[]byte) filetree.Tree {
	implied := map[string]bool{"dev": true, "etc": true}
	for _, layer := range layers {
		addImpliedFolders(implied, layer)
	}
	exported := filetree.Tree{}
	for name, f := range tree {
		f.Seconds, f.Nanoseconds = max(f.Seconds, 0), 0
		if !strings.Contains(f.Xattrs, "security.capability") {
			f.Xattrs = ""
		}
		if f.Mode&unix.S_IFMT == unix.S_IFDIR && implied[name] {
			f = filetree.File{Mode: unix.S_IFDIR, Twin: name}
		}
		exported[name] = f
	}
	for _, added := range []string{".", ".dockerenv", "dev", "dev/console", "dev/pts", "dev/shm", "etc", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "proc", "sys"} {
		delete(exported, added)
	}
	return exported
}

// addImpliedFolders adds the folders above entries of a layer that the layer does not describe.
func addImpliedFolders(implied map[string]bool, layer []byte) {
	names, described := []string{}, map[string]bool{".": true}
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		name := path.Clean("/" + h.Name)[1:]
		names = append(names, name)
		described[name] = h.Typeflag == tar.TypeDir
	}
	for _, name := range names {
		for above := path.Dir(name); above != "." && above != "/"; above = path.Dir(above) {
			implied[above] = implied[above] || !described[above]
		}
	}
}

// TestBuilt checks layers that a builder writes.
func TestBuilt(t *testing.T) {
	t.Parallel()
	layer, err := framework.BusyBoxLayer(t.Context())
	assert.NoError(t, err)
	layers := framework.BuildLayers(t, layer,
		"mkdir -p /srv/data/in /var /opt/a && echo precious > /srv/data/keep && echo x > /srv/data/in/x && busybox ln -s /srv/data /var/data && echo a > /opt/a/1 && busybox ln /opt/a/1 /opt/a/2",
		"rm /var/data && mkdir /var/data && echo new > /var/data/new",
		"rm -r /srv/data/in && echo file > /srv/data/in && busybox chmod 4711 /bin/busybox",
		"rm -r /opt/a && mkdir -m 1770 /opt/a && echo 3 > /opt/a/3 && busybox ln /srv/data/keep /opt/a/keep",
		"busybox mv /srv/data /srv/moved && busybox mkfifo /srv/pipe && busybox chown -h ann:staff /srv/moved /opt/a/3",
		"busybox ln /opt/a/keep /opt/a/kept && rm /opt/a/3 && busybox ln -s ../srv/moved /opt/link && rm /opt/link && mkdir /opt/link && rm -r /opt/link && busybox ln -s / /opt/link",
	)
	assert.Require(t, len(layers) == 7, "there are %d layers", len(layers))
	tree := checkConverted(t, layers...)
	for name, exists := range map[string]bool{"srv/moved/keep": true, "srv/data/keep": false, "var/data/new": true, "opt/a/1": false, "opt/a/kept": true} {
		_, got := tree[name]
		assert.True(t, got == exists, "%s exists: %v, want %v", name, got, exists)
	}
}
