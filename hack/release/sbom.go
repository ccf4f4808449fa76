// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

// component is a program of a release, with those that it carries.
type component struct {
	program
	// name has the architecture, such as cleave-linux-amd64.
	name string
	// carries are programs inside of it, such as hooks.
	carries []component
	// glibc is the version of the C library that it links, which is in its image or in itself; empty if none.
	glibc string
}

// inventory is what a bill of materials is written from.
type inventory struct {
	version, commit string
	time            time.Time
	components      []component
	licenses        map[linked]license
}

const noAssertion = "NOASSERTION"

// bill writes the bill of materials of a release in SPDX 2.3: each program, what it carries, and each module that it links.
func bill(i inventory) ([]byte, error) {
	b := &billing{inventory: i, doc: &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      "cleave-" + i.version,
		DocumentNamespace: "https://github.com/cleave-dra/cleave/releases/download/" + i.version + "/" + i.commit,
		CreationInfo: &spdx.CreationInfo{
			Created:  i.time.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "The Cleave authors"}, {CreatorType: "Tool", Creator: "cleave-release"}},
		},
	}, seen: map[common.ElementID]bool{}}
	for _, c := range i.components {
		id, err := b.component(c)
		if err != nil {
			return nil, err
		}
		b.relate("DOCUMENT", id, common.TypeRelationshipDescribe)
	}
	if err := spdxlib.ValidateDocument(b.doc); err != nil {
		return nil, fmt.Errorf("check the bill of materials: %w", err)
	}
	var out bytes.Buffer
	if err := spdxjson.Write(b.doc, &out, spdxjson.Indent(" ")); err != nil {
		return nil, fmt.Errorf("write the bill of materials: %w", err)
	}
	if err := validate(out.Bytes()); err != nil {
		return nil, err
	}
	return append(bytes.TrimSpace(out.Bytes()), '\n'), nil
}

// billing is a document that is being written.
type billing struct {
	inventory
	doc  *spdx.Document
	seen map[common.ElementID]bool
}

// component adds a program and all that it contains.
func (b *billing) component(c component) (common.ElementID, error) {
	data, err := readPacked(c.path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	id := elementID("program", c.name)
	p := b.add(id, c.name, b.version, "Apache-2.0")
	p.PrimaryPackagePurpose = "APPLICATION"
	p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}}
	p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "The Cleave authors"}
	golang := elementID("go", strings.TrimPrefix(c.goVersion, "go"))
	b.library(golang, "stdlib", strings.TrimPrefix(c.goVersion, "go"), golangLicense, "pkg:golang/stdlib@"+strings.TrimPrefix(c.goVersion, "go"))
	b.relate(id, golang, common.TypeRelationshipDependsOn)
	for _, m := range c.modules {
		to := elementID("module", m.String())
		b.library(to, m.path, m.version, b.licenses[m].expression(), "pkg:golang/"+m.path+"@"+m.version)
		b.relate(id, to, common.TypeRelationshipDependsOn)
	}
	if c.glibc != "" {
		to := elementID("debian", "glibc-"+c.glibc)
		b.library(to, "glibc", c.glibc, glibcLicense, "pkg:deb/debian/glibc@"+c.glibc+"?arch=source")
		b.relate(id, to, common.TypeRelationshipDependsOn)
	}
	for _, inner := range c.carries {
		to, err := b.component(inner)
		if err != nil {
			return "", err
		}
		b.relate(id, to, common.TypeRelationshipContains)
	}
	return id, nil
}

// library adds a package by others, once.
func (b *billing) library(id common.ElementID, name, version, license, url string) {
	if b.seen[id] {
		return
	}
	p := b.add(id, name, version, license)
	p.PrimaryPackagePurpose = "LIBRARY"
	p.PackageExternalReferences = []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: url,
	}}
}

func (b *billing) add(id common.ElementID, name, version, license string) *spdx.Package {
	b.seen[id] = true
	p := &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: id, PackageVersion: version, PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: license, PackageLicenseDeclared: license, PackageCopyrightText: noAssertion,
	}
	b.doc.Packages = append(b.doc.Packages, p)
	return p
}

func (b *billing) relate(from, to common.ElementID, how string) {
	b.doc.Relationships = append(b.doc.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to)), Relationship: how,
	})
}

// notInID is what SPDX does not allow in identifiers.
var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// elementID makes an identifier of a name. Two names that differ only in what is not allowed have their sum in it.
func elementID(kind, name string) common.ElementID {
	id := kind + "-" + notInID.ReplaceAllString(name, "-")
	if slices.ContainsFunc([]byte(name), func(c byte) bool { return notInID.Match([]byte{c}) && c != '/' && c != '@' }) {
		sum := sha256.Sum256([]byte(name))
		id += "-" + hex.EncodeToString(sum[:4])
	}
	return common.ElementID(id)
}
