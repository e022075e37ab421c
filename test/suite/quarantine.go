// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// quarantined is a test that fails for a known reason that is not fixed yet. The gate skips it until
// a day.
type quarantined struct {
	of, test, reason string
	expires          string // the last day, as 2006-01-02
}

const (
	maxQuarantined = 5
	// maxQuarantine is how far in the future the day may be.
	maxQuarantine = 30 * 24 * time.Hour
)

var quarantine = []quarantined{}

// checkTables fails if the tables of packages, shards or quarantine are wrong.
func checkTables(ctx context.Context, _ []string) error {
	for _, q := range quarantine {
		fmt.Printf("in quarantine until %s: %s %s: %s\n", q.expires, q.of, q.test, q.reason)
	}
	return errors.Join(checkPackages(ctx), checkShards(ctx), checkQuarantine(quarantine, time.Now()))
}

// checkQuarantine fails if the list is too long, or a row has expired or names no test.
func checkQuarantine(list []quarantined, now time.Time) (err error) {
	if len(list) > maxQuarantined {
		err = fmt.Errorf("%d tests are in quarantine, at most %d may be: cure one", len(list), maxQuarantined)
	}
	for _, q := range list {
		err = errors.Join(err, q.check(now))
	}
	return err
}

func (q quarantined) check(now time.Time) error {
	if _, err := findPackage(q.of); err != nil {
		return err
	}
	last, err := time.Parse(time.DateOnly, q.expires)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: the day of expiry is %q: write it as 2006-01-02", q.of, q.test, q.expires)
	case q.reason == "":
		return fmt.Errorf("%s %s is in quarantine without a reason", q.of, q.test)
	case now.After(last.AddDate(0, 0, 1)):
		return fmt.Errorf("%s %s was in quarantine until %s: cure it", q.of, q.test, q.expires)
	case last.Sub(now) > maxQuarantine:
		return fmt.Errorf("%s %s: %s is more than %d days ahead", q.of, q.test, q.expires, int(maxQuarantine.Hours()/24))
	}
	files, err := filepath.Glob(filepath.Join(q.of, "*_test.go"))
	for _, file := range files {
		if content, err := os.ReadFile(filepath.Clean(file)); err == nil && strings.Contains(string(content), "func "+q.test+"(t *testing.T)") {
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("%s lacks %s", q.of, q.test))
}

// skipFlags returns the flags with which a package's tests skip those in quarantine.
func skipFlags(p testPackage) []string {
	var names []string
	for _, q := range quarantine {
		if q.of == p.path {
			names = append(names, regexp.QuoteMeta(q.test))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{"-test.skip=^(" + strings.Join(names, "|") + ")$"}
}
