// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// systemCalls are those that change files or that tell where the next change is made.
const systemCalls = "openat,openat2,open,creat,read,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice," +
	"ftruncate,truncate,fallocate,fsync,fdatasync,sync_file_range,sync,syncfs,rename,renameat,renameat2,link,linkat," +
	"unlink,unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,mmap,lseek,ioctl"

// maxLine is the longest line of strace: the largest write, with four characters a byte.
const maxLine = 64 << 20

// call is a system call that has ended.
type call struct {
	name string
	// args are as strace prints them, strings and paths of descriptors as they are.
	args   []string
	result int64
	// path is that of the descriptor that an open returned.
	path string
}

// readCalls calls each with every system call that succeeded, in the order of their ends, and
// with unlinkat of what is not there, which marks are.
func readCalls(r io.Reader, each func(call) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	begun := map[string]string{} // by thread
	for lines.Scan() {
		thread, rest, _ := strings.Cut(lines.Text(), " ")
		rest = strings.TrimLeft(rest, " ")
		if text, ok := strings.CutSuffix(rest, " <unfinished ...>"); ok {
			begun[thread] = text
			continue
		}
		if strings.HasPrefix(rest, "<... ") {
			_, end, ok := strings.Cut(rest, " resumed>")
			if !ok {
				return fmt.Errorf("strace printed %.200s", rest)
			}
			rest = begun[thread] + end
		}
		if strings.HasPrefix(rest, "+++") || strings.HasPrefix(rest, "---") {
			continue
		}
		c, err := parseCall(rest)
		if err != nil {
			return err
		}
		if c.result < 0 && c.name != "unlinkat" {
			continue
		}
		if err := each(c); err != nil {
			return fmt.Errorf("%s(%.200s): %w", c.name, strings.Join(c.args, ", "), err)
		}
	}
	return lines.Err()
}

// parseCall parses a line such as openat(AT_FDCWD<\x2f>, "\x61", O_RDONLY) = 3<\x2f\x61>.
func parseCall(line string) (call, error) {
	wrong := fmt.Errorf("strace printed %.200s", line)
	name, rest, ok := strings.Cut(line, "(")
	end := strings.LastIndex(rest, " = ")
	if !ok || end < 0 {
		return call{}, wrong
	}
	args, ok := strings.CutSuffix(strings.TrimRight(rest[:end], " "), ")")
	if !ok {
		return call{}, wrong
	}
	// Strings and paths are escaped, so no argument but a structure contains a comma.
	c := call{name: name, args: strings.Split(args, ", "), result: -1}
	result, _, _ := strings.Cut(rest[end+len(" = "):], " ")
	result, path, _ := strings.Cut(result, "<")
	if result == "?" { // the process has ended in the call
		return c, nil
	}
	var err error
	if c.result, err = strconv.ParseInt(result, 0, 64); err != nil {
		return call{}, wrong
	}
	c.path = unescape(strings.TrimSuffix(path, ">"))
	return c, nil
}

// mentions reports whether a path is in an argument.
func (c call) mentions(path string) bool {
	var escaped strings.Builder
	for _, letter := range []byte(path) {
		fmt.Fprintf(&escaped, `\x%02x`, letter)
	}
	return slices.ContainsFunc(c.args, func(arg string) bool { return strings.Contains(arg, escaped.String()) })
}

// text returns a string argument.
func (c call) text(n int) string { return unescape(strings.Trim(c.args[n], `"`)) }

// number returns a number argument.
func (c call) number(n int) (int64, error) { return strconv.ParseInt(c.args[n], 0, 64) }

// descriptor returns a descriptor argument and its path, which is empty if it has been
// removed.
func (c call) descriptor(n int) (fd, path string) {
	fd, path, _ = strings.Cut(c.args[n], "<")
	path, removed, _ := strings.Cut(path, ">")
	if removed != "" {
		return fd, ""
	}
	return fd, unescape(path)
}

// unescape returns the bytes that -xx has printed, or the text itself if it is no such text.
func unescape(text string) string {
	decoded, err := hex.DecodeString(strings.ReplaceAll(text, `\x`, ""))
	if err != nil {
		return text
	}
	return string(decoded)
}
