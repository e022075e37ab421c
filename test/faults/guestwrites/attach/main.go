// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program attach takes the place of QEMU where Drover looks for it, and becomes QEMU. The files
// of writable disks are replaced on its command line by exports of an NBD server, which
// records what QEMU writes. All else stays as Drover has it, cache modes included.
//
// The path by which it was started ends with a dash and the TCP port of the server. The name of
// an export is that of the block node. QEMU sends flushes to an NBD server even if a cache mode
// says that it flushes no file. The name of such an export ends with noFlush.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// noFlush is known to package guestwrites too.
const noFlush = "/no-flush"

func main() {
	fmt.Fprintln(os.Stderr, "attach:", runQEMU())
	os.Exit(1)
}

// runQEMU does not return unless it fails.
func runQEMU() error {
	port := os.Args[0][strings.LastIndexByte(os.Args[0], '-')+1:]
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	args := append([]string{qemu}, os.Args[1:]...)
	for n := 1; n < len(args); n++ {
		if args[n-1] != "-blockdev" {
			continue
		}
		if args[n], err = attach(args[n], port); err != nil {
			return err
		}
	}
	return syscall.Exec(qemu, args, os.Environ())
}

// attach returns the block node of a disk, with an export in place of its file if it is
// writable.
func attach(text, port string) (string, error) {
	var node map[string]any
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		return "", err
	}
	file, ok := node["file"].(map[string]any)
	if !ok || file["driver"] != "file" {
		return "", fmt.Errorf("the block node %s has no file", text)
	}
	if node["read-only"] == true {
		return text, nil
	}
	delete(file, "filename")
	export, _ := node["node-name"].(string)
	if ignoresFlushes(node) || ignoresFlushes(file) {
		export += noFlush
	}
	file["driver"], file["export"] = "nbd", export
	file["server"] = map[string]string{"type": "inet", "host": "127.0.0.1", "port": port}
	out, err := json.Marshal(node)
	return string(out), err
}

// ignoresFlushes reports whether the cache mode of a block node is that.
func ignoresFlushes(node map[string]any) bool {
	cache, _ := node["cache"].(map[string]any)
	return cache["no-flush"] == true
}
