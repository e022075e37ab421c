// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program attach takes the place of QEMU where Drover looks for it, and becomes QEMU. The files
// of writable disks are replaced on its command line by exports of an NBD server, which
// records what QEMU writes. All else stays as Drover has it, cache modes included.
//
// QEMU may use only the sockets that it inherits. So the program reports to the server by a pipe
// beside itself how many connections it needs, and takes them at the socket of the guest's
// network. The path by which it was started ends with a dash and the server's process: others may
// connect there too. An export has the name of the block node. QEMU sends flushes to an NBD
// server even if a cache mode says that it flushes no file. The name of such an export ends with
// noFlush.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/failover/processlog"
)

// noFlush is known to package guestwrites too.
const noFlush = "/no-flush"

func main() {
	fmt.Fprintln(os.Stderr, "attach:", runQEMU())
	os.Exit(1)
}

// runQEMU does not return unless it fails.
func runQEMU() error {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	args := append([]string{qemu}, os.Args[1:]...)
	listener, exports := -1, []int{}
	for n := 1; n < len(args); n++ {
		switch args[n-1] {
		case "-netdev":
			if _, err = fmt.Sscanf(args[n][strings.LastIndexByte(args[n], '=')+1:], "%d", &listener); err != nil {
				return fmt.Errorf("%s has no descriptor: %w", args[n], err)
			}
		case "-blockdev":
			var isExport bool
			if args[n], isExport, err = attach(args[n]); err != nil {
				return err
			}
			if isExport {
				exports = append(exports, n)
			}
		}
	}
	if len(exports) > 0 { // else QEMU is asked for its version, for example
		if err := processlog.SendReport(os.Args[0], []int{os.Getpid(), len(exports)}); err != nil {
			return err
		}
	}
	for _, n := range exports {
		fd, err := accept(listener)
		if err != nil {
			return err
		}
		args[n] = strings.Replace(args[n], placeholder, strconv.Itoa(fd), 1)
	}
	return syscall.Exec(qemu, args, os.Environ())
}

// placeholder stands for the descriptor of a connection.
const placeholder = "DESCRIPTOR"

// accept takes a connection of the server. Those of others are closed: they try again.
func accept(listener int) (fd int, err error) {
	server := os.Args[0][strings.LastIndexByte(os.Args[0], '-')+1:]
	for {
		if fd, _, err = unix.Accept(listener); err != nil {
			return 0, fmt.Errorf("waiting for the server: %w", err)
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return 0, err
		}
		if strconv.Itoa(int(peer.Pid)) == server {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
}

// attach returns the block node of a disk, with an export in place of its file if it is
// writable.
func attach(text string) (attached string, isExport bool, err error) {
	var node map[string]any
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		return "", false, err
	}
	file, ok := node["file"].(map[string]any)
	if !ok || file["driver"] != "file" {
		return "", false, fmt.Errorf("the block node %s has no file", text)
	}
	if node["read-only"] == true {
		return text, false, nil
	}
	delete(file, "filename")
	export, _ := node["node-name"].(string)
	if ignoresFlushes(node) || ignoresFlushes(file) {
		export += noFlush
	}
	file["driver"], file["export"] = "nbd", export
	file["server"] = map[string]string{"type": "fd", "str": placeholder}
	out, err := json.Marshal(node)
	return string(out), true, err
}

// ignoresFlushes reports whether the cache mode of a block node is that.
func ignoresFlushes(node map[string]any) bool {
	cache, _ := node["cache"].(map[string]any)
	return cache["no-flush"] == true
}
