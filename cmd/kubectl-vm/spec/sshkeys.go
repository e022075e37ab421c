// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// keyAuto is the value of --ssh-key for the keys of the user who runs the program.
const keyAuto = "auto"

const (
	// agentTimeout is how long the agent may take to list its keys.
	agentTimeout = 5 * time.Second
	// mostKeyBytes is more than any file of public keys has.
	mostKeyBytes = 1 << 20
)

// readKeys returns the public keys that the values of --ssh-key mean: auto, a file, or a key
// itself.
func readKeys(ctx context.Context, values []string) ([]string, error) {
	var all []string
	for _, value := range values {
		keys, err := readKey(ctx, value)
		if err != nil {
			return nil, fmt.Errorf("--ssh-key %s: %w", value, err)
		}
		for _, key := range keys {
			if !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all, nil
}

func readKey(ctx context.Context, value string) ([]string, error) {
	switch {
	case value == keyAuto:
		return ownKeys(ctx)
	case strings.Contains(value, " "):
		return parseKeys(value)
	}
	content, err := kit.ReadLimited(value, mostKeyBytes)
	if err != nil {
		return nil, err
	}
	return parseKeys(string(content))
}

// ownKeys returns the public keys of the user: those in ~/.ssh, or else those of the agent. It
// makes none.
func ownKeys(ctx context.Context) ([]string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("find the home folder: %w", err)
	}
	paths, err := filepath.Glob(filepath.Join(home, ".ssh", "id_*.pub"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range paths {
		if strings.HasSuffix(path, "-cert.pub") {
			continue // a certificate is not a key
		}
		content, err := kit.ReadLimited(path, mostKeyBytes)
		if err != nil {
			return nil, err
		}
		keys, err := parseKeys(string(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, keys...)
	}
	if len(all) > 0 {
		return all, nil
	}
	return agentKeys(ctx)
}

var errNoKeys = errors.New("there is no public key in ~/.ssh/id_*.pub or in an agent: make one with ssh-keygen -t ed25519, or name another file")

// agentKeys returns the keys of the user's agent.
func agentKeys(ctx context.Context) ([]string, error) {
	if os.Getenv("SSH_AUTH_SOCK") == "" {
		return nil, errNoKeys
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ssh-add", "-L").Output()
	if err != nil {
		return nil, errNoKeys // an agent without keys fails too
	}
	return parseKeys(string(out))
}

// parseKeys returns the lines of a file of public keys.
func parseKeys(text string) ([]string, error) {
	if strings.Contains(text, "PRIVATE KEY-----") {
		return nil, errors.New("this is a private key: name the file with the public one, which ends in .pub")
	}
	var keys []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !isPublicKey(line) {
			return nil, fmt.Errorf("%q is not a public key, which begins like ssh-ed25519 AAAA", kit.ShortenText(printable.Line(line), 40))
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errors.New("it does not contain a public key")
	}
	return keys, nil
}

// isPublicKey reports whether a line of authorized_keys has a key, with or without options
// before it.
func isPublicKey(line string) bool {
	words := strings.Fields(line)
	for i, word := range words[:len(words)-1] {
		if !strings.HasPrefix(word, "ssh-") && !strings.HasPrefix(word, "ecdsa-") && !strings.HasPrefix(word, "sk-") {
			continue
		}
		blob, err := base64.StdEncoding.DecodeString(words[i+1])
		if err == nil && len(blob) > 32 {
			return true
		}
	}
	return false
}
