// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// recordFile has a line for the last run of each shard. It must not be among the paths of a shard.
const recordFile = "test/full-runs.txt"

const recordHeader = `# What make test-full has run in full and passed, which writes this file. Of each shard: the commit,
# the hash of the files that concern it, the day, and the seconds it took.
`

// fullRun is the last run of a shard.
type fullRun struct {
	shard, commit, hash, day string
	seconds                  int
}

func readRuns() (map[string]fullRun, error) {
	content, err := os.ReadFile(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]fullRun{}, nil
	}
	runs := map[string]fullRun{}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var r fullRun
		if _, err := fmt.Sscan(line, &r.shard, &r.commit, &r.hash, &r.day, &r.seconds); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", recordFile, strings.TrimSpace(line), err)
		}
		runs[r.shard] = r
	}
	return runs, err
}

// recordRun records that a shard has passed. The commit has a plus sign if the files differed from
// those of the commit.
func recordRun(ctx context.Context, s shard, hash string, took time.Duration) error {
	runs, err := readRuns()
	if err != nil {
		return err
	}
	commit, err := gitOutput(ctx, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return err
	}
	changed, err := gitOutput(ctx, append([]string{"status", "--porcelain", "--"}, s.paths...)...)
	if err != nil {
		return err
	}
	if changed != "" {
		commit += "+"
	}
	runs[s.name] = fullRun{s.name, commit, hash, time.Now().UTC().Format(time.DateOnly), int(took.Seconds())}
	var text bytes.Buffer
	text.WriteString(recordHeader)
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, s := range shards {
		if r, ok := runs[s.name]; ok {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", r.shard, r.commit, r.hash, r.day, r.seconds)
		}
	}
	_ = w.Flush()
	return os.WriteFile(recordFile, text.Bytes(), 0o644) // #nosec -- a file of the repository
}

// staleShards returns the shards whose files have changed since their last run, the one with the
// oldest run first.
func staleShards(ctx context.Context) ([]shard, error) {
	runs, err := readRuns()
	if err != nil {
		return nil, err
	}
	var stale []shard
	for _, s := range shards {
		hash, err := hashPaths(ctx, s.paths)
		if err != nil {
			return nil, err
		}
		if runs[s.name].hash != hash {
			stale = append(stale, s)
		}
	}
	slices.SortStableFunc(stale, func(a, b shard) int { return cmp.Compare(runs[a.name].day, runs[b.name].day) })
	return stale, nil
}

// hashPaths returns a hash of the present names and contents of files, except those that git
// ignores.
func hashPaths(ctx context.Context, paths []string) (string, error) {
	list, err := gitOutput(ctx, append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, paths...)...)
	if err != nil {
		return "", err
	}
	names := slices.Compact(slices.Sorted(strings.SplitSeq(strings.Trim(list, "\x00"), "\x00")))
	sum := sha256.New()
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not yet committed
		}
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(sum, "%s\x00", name)
		n, err := io.Copy(sum, f)
		_, _ = fmt.Fprintf(sum, "\x00%d\x00", n)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

func gitOutput(ctx context.Context, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, "git", args...))
}

// printShards prints the shards, the time of their last run and whether it is stale.
func printShards(ctx context.Context, _ []string) error {
	runs, err := readRuns()
	if err != nil {
		return err
	}
	stale, err := staleShards(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "SHARD\tLAST FULL RUN\tCOMMIT\tSECONDS\tSTATE")
	for _, s := range shards {
		state := "up to date"
		if slices.ContainsFunc(stale, func(other shard) bool { return other.name == s.name }) {
			state = "stale"
		}
		r := runs[s.name]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", s.name, cmp.Or(r.day, "never"), cmp.Or(r.commit, "-"), r.seconds, state)
	}
	return w.Flush()
}
