// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program initramfs writes the initramfs of container images as machines: the program drover-guest,
// and the kernel's modules in the order of their list. make guest calls it.
//
//	go run ./hack/guest/initramfs PROGRAM MODULES-DIR >initramfs
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/internal/guest/initramfs"
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

func pack(out io.Writer, program, modules string) error {
	code, err := os.ReadFile(program) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	names, err := os.ReadFile(filepath.Join(modules, order)) //nolint:gosec // the caller's
	if err != nil {
		return err
	}
	files := []initramfs.File{{Name: "modules/" + order, Content: names}}
	for name := range strings.FieldsSeq(string(names)) {
		content, err := os.ReadFile(filepath.Join(modules, name)) //nolint:gosec // the caller's
		if err != nil {
			return err
		}
		files = append(files, initramfs.File{Name: "modules/" + name, Content: stripSignature(content)})
	}
	// Not compressed: unpacking costs an emulated machine more than reading 3 MB more.
	return initramfs.Write(out, code, files)
}

// signatureMark ends a module with a signature. Before it come 12 bytes about the signature, the last
// four its length, and before these the signature (include/linux/module_signature.h).
var signatureMark = []byte("~Module signature appended~\n")

const signatureInfo = 12

// stripSignature removes a module's signature. The kernel does not require one, since whoever can
// change the initramfs can change the kernel, too; checking it costs an emulated machine 10 ms a module.
func stripSignature(module []byte) []byte {
	rest, isSigned := bytes.CutSuffix(module, signatureMark)
	if !isSigned || len(rest) < signatureInfo {
		return module
	}
	length := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	if length > int64(len(rest)-signatureInfo) {
		return module
	}
	return rest[:int64(len(rest)-signatureInfo)-length]
}
