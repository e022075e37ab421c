// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program modules writes the file system with all modules of the kernel for container images as machines: a
// folder /lib/modules/RELEASE after depmod(8), and an empty file on which the guest mounts its modprobe. hack/guest-kernel.sh
// calls it.
//
//	go run ./hack/guest/modules FOLDER KERNEL-SHA256 FILE
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/modules"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: modules FOLDER KERNEL-SHA256 FILE")
		os.Exit(2)
	}
	if err := writeImage(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

func writeImage(folder, kernel, path string) (err error) {
	out, err := os.Create(path) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := erofs.New(&diskspace.File{File: out, Disk: &diskspace.Disk{Dir: filepath.Dir(path)}}, 1<<30)
	root, err := addFolder(w, folder)
	if err != nil {
		return err
	}
	root.Children[modules.Program] = &erofs.Inode{Mode: unix.S_IFREG | 0o755}
	_, err = w.Finish(root, "modules of "+kernel)
	return err
}

// addFolder adds a folder. It leaves out links, which lead to the sources of the kernel.
func addFolder(w *erofs.Writer, folder string) (*erofs.Inode, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	added := &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: map[string]*erofs.Inode{}}
	for _, e := range entries {
		path, child := filepath.Join(folder, e.Name()), (*erofs.Inode)(nil)
		switch e.Type() {
		case fs.ModeDir:
			child, err = addFolder(w, path)
		case 0:
			child, err = addFile(w, path)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		added.Children[e.Name()] = child
	}
	return added, nil
}

func addFile(w *erofs.Writer, path string) (*erofs.Inode, error) {
	content, err := os.ReadFile(path) //nolint:gosec // in the caller's folder
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, ".ko") {
		content = modules.StripSignature(content)
	}
	data, err := w.Append(bytes.NewReader(content))
	return &erofs.Inode{Mode: unix.S_IFREG | 0o644, Data: data}, err
}
