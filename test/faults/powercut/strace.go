// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// systemCalls are the calls that change files, or the position of the next change.
const systemCalls = "openat,openat2,open,creat,read,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,splice," +
	"ftruncate,truncate,fchmod,fallocate,fsync,fdatasync,sync_file_range,sync,syncfs,rename,renameat,renameat2,link,linkat," +
	"unlink,unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,mmap,lseek,ioctl"

// maxLine is the longest line that strace prints: the largest write, at four characters per byte.
const maxLine = 64 << 20

// call is a system call that has succeeded.
type call struct {
	name string
	// args are the arguments as strace prints them.
	args   []string
	result int64
}

// callPattern matches a line such as 7 openat(AT_FDCWD<\x2f>, "\x61", O_RDONLY) = 3<\x2f\x61>.
var callPattern = regexp.MustCompile(`^\d+ +(\w+)\((.*)\) += (0x[0-9a-f]+|\d+)`)

// killedPattern matches a line such as 7 ???(, which strace prints for a thread that was killed by
// the end of its program while it was stopped at a system call. The call has not run.
var killedPattern = regexp.MustCompile(`^\d+ +\?+\(`)

// readCalls calls handle for every system call that succeeded, in the order of completion.
func readCalls(r io.Reader, handle func(call) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if killedPattern.MatchString(lines.Text()) {
			continue
		}
		match := callPattern.FindStringSubmatch(lines.Text())
		if match == nil {
			return fmt.Errorf("unexpected line from strace: %.200q", lines.Text())
		}
		result, err := strconv.ParseInt(match[3], 0, 64)
		if err != nil {
			return err
		}
		// Strings and paths are escaped, so no argument but a structure contains a comma.
		if err := handle(call{match[1], strings.Split(match[2], ", "), result}); err != nil {
			return fmt.Errorf("%.200s: %w", lines.Text(), err)
		}
	}
	return lines.Err()
}

// mentions reports whether an argument contains a path.
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

// descriptor returns a descriptor argument and the path of its file, which is empty if the file
// has been removed.
func (c call) descriptor(n int) (fd, path string) {
	fd, path, _ = strings.Cut(c.args[n], "<")
	path, removed, _ := strings.Cut(path, ">")
	if removed != "" {
		return fd, ""
	}
	return fd, unescape(path)
}

// unescape decodes a string with hexadecimal escapes. It returns other strings unchanged.
func unescape(text string) string {
	decoded, err := hex.DecodeString(strings.ReplaceAll(text, `\x`, ""))
	if err != nil {
		return text
	}
	return string(decoded)
}
