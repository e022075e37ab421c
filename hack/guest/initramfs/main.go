// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program initramfs writes the initramfs of container images as machines: the program drover-guest,
// and the kernel's modules in the order of their list. make guest calls it.
//
//	go run ./hack/guest/initramfs PROGRAM MODULES-DIR >initramfs
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/internal/guest/initramfs"
	"cloudnative.tw/drover/internal/guest/modules"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: initramfs PROGRAM MODULES-DIR >initramfs")
		os.Exit(2)
	}
	if err := pack(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "initramfs:", err)
		os.Exit(1)
	}
}

// order is the file with the names of the modules.
const order = "modules.order"

func pack(out io.Writer, program, folder string) error {
	code, err := os.ReadFile(program) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	names, err := os.ReadFile(filepath.Join(folder, order)) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	files := []initramfs.File{{Name: "modules/" + order, Content: names}}
	for name := range strings.FieldsSeq(string(names)) {
		content, err := os.ReadFile(filepath.Join(folder, name)) //nolint:gosec // the caller's
		if err != nil {
			return err
		}
		files = append(files, initramfs.File{Name: "modules/" + name, Content: modules.StripSignature(content)})
	}
	// Not compressed: unpacking costs an emulated machine more than reading 3 MB more.
	return initramfs.Write(out, code, files)
}
