// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"regexp"
	"slices"
)

// source is where a text stands.
type source int

const (
	comment source = 1 << iota
	literal        // a string of Go
	code
	page // Markdown

	prose = comment | literal | page
)

// pattern is an odd construction of English: a reader stops at it, and writers of other
// projects hardly use it.
type pattern struct {
	name    string
	in      source
	words   []string // a match has one of them, which is quicker to find; nil if unknown
	find    *regexp.Regexp
	except  *regexp.Regexp // matches that are plain English, nil if all are odd
	instead string         // what to write
}

// patterns are written so that they do not match in this file; testdata/patterns.txt has examples.
var patterns = []pattern{
	{
		name: "negated noun", in: prose,
		words:   []string{" no "},
		find:    regexp.MustCompile(`(?:[Tt]here )?\b(?:is|are|was|were|has|have|had) no \w+(?: than\b)?`),
		except:  regexp.MustCompile(`^[Tt]here | no (?:longer|more than|way|need|effect|other|such|one$)`),
		instead: `negate the verb ("is not valid JSON", "lacks a default"), or say "without"`,
	},
	{
		name: "none as a noun", in: prose,
		words:   []string{" no"},
		find:    regexp.MustCompile(`(?:[Tt]here )?\b(?:is|are|was) none\b|\bwhat is no(?:ne)?\b`),
		except:  regexp.MustCompile(`^[Tt]here `),
		instead: `say what it is not: "anything that is not an IPv4 address", "is not a restart"`,
	},
	{
		name: "that-of", in: prose,
		words:   []string{" that ", " those "},
		find:    regexp.MustCompile(`\b(?:is|are|as|was|than) (?:that|those) (?:of|in|with|from|by|for)\b`),
		instead: `repeat the noun, or use a verb: "Disk describes the file system"`,
	},
	{
		name: "what-clause", in: prose,
		words:   []string{" what"},
		find:    regexp.MustCompile(`\b(?:is|are|has|have|of|for|by|to|in|from|with|and) what\b(?: happens)?`),
		except:  regexp.MustCompile(` happens$`),
		instead: `use a noun: "batch holds the flags that several verbs share", "the output of the command"`,
	},
	{
		name: "own", in: prose,
		words:   []string{" own"},
		find:    regexp.MustCompile(`\bof (?:its|their|his|her|my|your|one.s) own\b|\b\w+.s own\b`),
		instead: `leave it out: "the verb's formats"; or say separate, private, dedicated`,
	},
	{
		name: "old word", in: prose,
		words:   []string{"vain", "good", "unaske", "ane", "turn", "before", "more"},
		find:    regexp.MustCompile(`\b(?:in (?:vain|its turn)|for (?:good)|una(?:sked)|ane(?:w)|of (?:before)|no (?:more))\b`),
		instead: `use a plain word: unusable, forever, by itself, again, then, the previous, no longer`,
	},
	{
		name: "vague by", in: prose,
		words:   []string{" by"},
		find:    regexp.MustCompile(`\b(?:come|comes|came|goes|go|went|given|reached|taken|sent|passes?) by\b`),
		instead: `say how: "arrives through the console", "is sent over TLS", "is set with a flag"`,
	},
	{
		name: "spaced colon", in: comment,
		find:    regexp.MustCompile(`^\w+ : `),
		instead: `write a sentence: "ErrFrame means that the peer sent an invalid frame."`,
	},
	{
		name: "verb for ok", in: code,
		find:    regexp.MustCompile(`, (?:is|has|says|took|had) :?= `),
		instead: `name it ok or found, as Go does`,
	},
	{
		name: "empty heading", in: comment,
		find:    regexp.MustCompile(`^The [a-z]+(?: [a-z]+)?(?: of [a-z]+)?\.$`),
		instead: `delete it, or say more: "The states of an installation, in the order of its life."`,
	},
}

// oddity is a place where a pattern matches.
type oddity struct {
	file    string
	line    int
	pattern *pattern
	text    string // the match, with a few letters around it
}

// findOddities returns where patterns match in a file.
func findOddities(file string, passages []passage) []oddity {
	var found []oddity
	for _, p := range passages {
		for i := range patterns {
			if patterns[i].in&p.source == 0 {
				continue
			}
			for _, match := range patterns[i].matches(p.text) {
				found = append(found, oddity{file, p.lineAt(match[0]), &patterns[i], p.excerpt(match[0], match[1])})
			}
		}
	}
	return found
}

// matches returns where a text has a pattern, as offsets.
func (p *pattern) matches(text []byte) [][]int {
	if p.words != nil && !slices.ContainsFunc(p.words, func(word string) bool { return bytes.Contains(text, []byte(word)) }) {
		return nil
	}
	return slices.DeleteFunc(p.find.FindAllIndex(text, -1), func(match []int) bool {
		return p.except != nil && p.except.Match(text[match[0]:match[1]])
	})
}
