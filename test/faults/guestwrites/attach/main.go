// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program attach is started by Drover in place of QEMU, changes the command line and executes
// QEMU. It replaces the files of writable disks by exports of an NBD server, which records what
// QEMU writes. Everything else, such as cache modes, stays as Drover has set it.
//
// QEMU may use only sockets that it inherits. So the program tells the server, by a pipe in the
// server's folder, how many connections it needs, and accepts them at the listening socket that
// QEMU inherits for the guest's network. Others may connect to this socket too: the program
// recognizes the server by its PID, which follows the last dash of the program's path. An export has
// the name of the block node. The suffix noFlush tells the server that the node's cache mode ignores
// flushes, because QEMU sends flushes to an NBD server in every cache mode.
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

// noFlush is the same as in package guestwrites.
const noFlush = "/no-flush"

func main() {
	fmt.Fprintln(os.Stderr, "attach:", runQEMU())
	os.Exit(1)
}

// runQEMU returns only if it fails.
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
				return fmt.Errorf("%s lacks a descriptor: %w", args[n], err)
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
	if len(exports) > 0 { // none if QEMU is only queried, for example for its version
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

// placeholder is replaced by the descriptor of a connection.
const placeholder = "DESCRIPTOR"

// accept accepts a connection of the server. It closes those of other processes, which will try again.
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

// attach returns the block node of a disk. If the disk is writable, its file is replaced by
// an export.
func attach(text string) (attached string, isExport bool, err error) {
	var node map[string]any
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		return "", false, err
	}
	file, ok := node["file"].(map[string]any)
	if !ok || file["driver"] != "file" {
		return "", false, fmt.Errorf("the block node %s lacks a file", text)
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

// ignoresFlushes reports whether the cache mode of a block node ignores flushes.
func ignoresFlushes(node map[string]any) bool {
	cache, _ := node["cache"].(map[string]any)
	return cache["no-flush"] == true
}
